package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imagePaths are the paths of a tree that an image has: the command, the library that it puts into
// programs, and the licences.
var imagePaths = []string{"/usr/bin/gosmc", "/usr/lib/gosmc/", "/usr/share/doc/gosmc/LICENSE",
	"/usr/share/doc/gosmc/gosmc.spdx.json"}

// writeImage writes an archive of an OCI layout, with one image for each architecture.
func (b *builder) writeImage(arches []string, trees map[string]tree) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range arches {
		image, err := b.image(arch, trees[arch])
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	dir := filepath.Join(b.stage, "oci")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	// a tag has no plus
	name := map[string]string{"org.opencontainers.image.ref.name": strings.ReplaceAll(b.release.version, "+", "_")}
	if err := path.AppendIndex(index, layout.WithAnnotations(name)); err != nil {
		return err
	}
	var files tree
	err = walk(dir, func(path, relative string) error {
		files = append(files, file{path: relative, source: path, mode: 0o644})
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(files, func(x, y file) int { return strings.Compare(x.path, y.path) })
	return b.create("gosmc-"+b.release.packageVersion()+"-oci.tar",
		func(w io.Writer) error { return b.writeTar(w, "", files) })
}

func (b *builder) image(arch string, t tree) (v1.Image, error) {
	var files tree
	for _, f := range t.of("oci") {
		if slices.ContainsFunc(imagePaths, func(p string) bool { return f.path == p || strings.HasSuffix(p, "/") && strings.HasPrefix(f.path, p) }) {
			files = append(files, f)
		}
	}
	var plain, compressed bytes.Buffer
	if err := b.writeTar(&plain, "", files); err != nil {
		return nil, err
	}
	z, _ := gzip.NewWriterLevel(&compressed, gzip.BestCompression) // the level is right
	_, err := z.Write(plain.Bytes())
	if err := errors.Join(err, z.Close()); err != nil {
		return nil, err
	}
	layer, err := newLayer(plain.Bytes(), compressed.Bytes())
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: b.release.date}
	image, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer: layer, History: v1.History{Created: created, CreatedBy: "gosmc packaging/build"},
	})
	if err != nil {
		return nil, err
	}
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Created, config.OS, config.Architecture = created, "linux", arch
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/gosmc"}, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "gosmc", "org.opencontainers.image.description": summary, "org.opencontainers.image.source": homepage,
			"org.opencontainers.image.version": b.release.version, "org.opencontainers.image.revision": b.release.commit,
			"org.opencontainers.image.created": b.release.dateText(), "org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, config)
}

// A layer is one whose plain and compressed bytes are both known.
type layer struct {
	v1.Layer // of the compressed bytes
	plain    []byte
	diffID   v1.Hash
}

func newLayer(plain, compressed []byte) (v1.Layer, error) {
	diffID, _, err := v1.SHA256(bytes.NewReader(plain))
	return &layer{static.NewLayer(compressed, types.OCILayer), plain, diffID}, err
}

func (l *layer) DiffID() (v1.Hash, error) { return l.diffID, nil }

func (l *layer) Uncompressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.plain)), nil
}
