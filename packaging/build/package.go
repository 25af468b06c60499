package main

import (
	"io"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/goreleaser/nfpm/v2/rpm"
)

const (
	homepage = "https://github.com/gosmc/smc"
	summary  = "faster TCP connections between programs of one machine, by shared memory"
)

func (b *builder) writeDeb(arch string, t tree) error {
	return b.writePackage(&deb.Deb{}, arch, t.of("deb"))
}

func (b *builder) writeRPM(arch string, t tree) error {
	return b.writePackage(rpm.DefaultRPM, arch, t.of("rpm"))
}

func (b *builder) writePackage(packager nfpm.Packager, arch string, t tree) error {
	scripts := filepath.Join(b.root, "packaging", "scripts")
	info := &nfpm.Info{
		Name: "gosmc", Arch: arch, Platform: "linux", Version: b.release.packageVersion(), VersionSchema: "none",
		Section: "net", Priority: "optional", Maintainer: "The gosmc authors <gosmc@users.noreply.github.com>", Homepage: homepage, License: "Apache-2.0",
		Description: summary + "\n" +
			"gosmc run starts an unchanged program whose TCP connections to others on the same machine move to shared memory. gosmc also shows\n" +
			"connections of Shared Memory Communications (SMC-D, SMC-R), reads captures of them, and has the agent for SMC-R between machines.",
		MTime: b.release.date, DisableGlobbing: true,
	}
	info.Scripts = nfpm.Scripts{
		PostInstall: filepath.Join(scripts, "postinst"), PreRemove: filepath.Join(scripts,
			"prerm"), PostRemove: filepath.Join(scripts, "postrm"),
	}
	info.RPM.BuildHost, info.RPM.Summary, info.RPM.Group = "localhost", summary, "System Environment/Daemons"
	info.RPM.Compression, info.Deb.Compression = "zstd", "xz"
	owned := func(destination, source, kind string, f file) *files.Content {
		return &files.Content{
			Destination: destination, Source: source, Type: kind,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode,
				MTime: b.release.date},
		}
	}
	for _, f := range t {
		kind := files.TypeFile
		if f.config {
			kind = files.TypeConfigNoReplace
		}
		info.Contents = append(info.Contents, owned(f.path, f.source, kind, f))
	}
	for _, dir := range t.ownDirectories() {
		info.Contents = append(info.Contents, owned(dir, "", files.TypeDir, file{mode: 0o755}))
	}
	return b.create(packager.ConventionalFileName(info),
		func(w io.Writer) error { return packager.Package(info, w) })
}
