package main

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// An spdxDocument is a document of SPDX 2.3, as far as we have something to say.
type spdxDocument struct {
	Version       string             `json:"spdxVersion"`
	License       string             `json:"dataLicense"`
	ID            string             `json:"SPDXID"`
	Name          string             `json:"name"`
	Namespace     string             `json:"documentNamespace"`
	Creation      spdxCreation       `json:"creationInfo"`
	Packages      []spdxPackage      `json:"packages"`
	Files         []spdxFile         `json:"files"`
	Relationships []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID         string         `json:"SPDXID"`
	Name       string         `json:"name"`
	Version    string         `json:"versionInfo"`
	Location   string         `json:"downloadLocation"`
	Analyzed   bool           `json:"filesAnalyzed"`
	Concluded  string         `json:"licenseConcluded"`
	Declared   string         `json:"licenseDeclared"`
	Copyright  string         `json:"copyrightText"`
	References []spdxExternal `json:"externalRefs"`
}

type spdxExternal struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxFile struct {
	ID        string         `json:"SPDXID"`
	Name      string         `json:"fileName"`
	Checksums []spdxChecksum `json:"checksums"`
	Concluded string         `json:"licenseConcluded"`
	Copyright string         `json:"copyrightText"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxRelationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const (
	spdxDocumentID = "SPDXRef-DOCUMENT"
	spdxGosmcID    = "SPDXRef-gosmc"
	noAssertion    = "NOASSERTION"
)

// sbom lists the modules that a command was linked from, as the linker has recorded them in it.
func (b *builder) sbom(command string) ([]byte, error) {
	info, err := buildinfo.ReadFile(command)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(command)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	d := spdxDocument{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: spdxDocumentID, Name: "gosmc-" + b.release.version,
		Namespace: fmt.Sprintf("%s/spdx/%s-%x", homepage, b.release.version, sum),
		Creation:  spdxCreation{b.release.dateText(), []string{"Tool: gosmc-packaging-build"}},
		Files: []spdxFile{{
			ID: spdxGosmcID + "-command", Name: "./usr/bin/gosmc", Concluded: noAssertion, Copyright: noAssertion,
			// SPDX wants the first one
			Checksums: []spdxChecksum{{"SHA1", fmt.Sprintf("%x", sha1.Sum(content))},
				{"SHA256", fmt.Sprintf("%x", sum)}},
		}},
	}
	relate := func(element, kind, related string) {
		d.Relationships = append(d.Relationships, spdxRelationship{element, kind, related})
	}
	add := func(id, path, version, license string) {
		d.Packages = append(d.Packages, spdxPackage{
			ID: id, Name: path, Version: version, Location: noAssertion, Concluded: license, Declared: license, Copyright: noAssertion,
			References: []spdxExternal{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + version}},
		})
	}
	add(spdxGosmcID, info.Main.Path, b.release.version, "Apache-2.0")
	relate(spdxDocumentID, "DESCRIBES", spdxGosmcID)
	relate(spdxGosmcID, "CONTAINS", spdxGosmcID+"-command")
	for _, m := range modulesOf(info) {
		id := "SPDXRef-module-" + strings.Map(func(r rune) rune {
			if r == '.' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
				return r
			}
			return '-'
		}, m.Path)
		add(id, m.Path, m.Version, noAssertion)
		relate(spdxGosmcID, "DEPENDS_ON", id)
	}
	text, err := json.MarshalIndent(d, "", "  ")
	return append(text, '\n'), err
}

// modulesOf returns the modules of a command besides its own, with the standard library.
func modulesOf(info *debug.BuildInfo) []*debug.Module {
	list := []*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		for m.Replace != nil {
			m = m.Replace
		}
		list = append(list, m)
	}
	return list
}

// licenses returns the licences of the modules in a command: those that come with a binary have to
// be with it.
func (b *builder) licenses(command string) ([]byte, error) {
	info, err := buildinfo.ReadFile(command)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, m := range modulesOf(info) {
		query := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", m.Path)
		if m.Path == "stdlib" {
			query = exec.Command("go", "env", "GOROOT")
		}
		query.Dir = b.root
		dir, err := query.Output()
		if err != nil {
			return nil, fmt.Errorf("where is module %s? %w", m.Path, err)
		}
		names, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "LICEN[SC]E*"))
		if err != nil || len(names) == 0 {
			return nil, fmt.Errorf("module %s has no licence in %s", m.Path, dir)
		}
		slices.Sort(names)
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&out, "==== %s %s, %s\n\n%s\n", m.Path, m.Version, filepath.Base(name), text)
		}
	}
	return out.Bytes(), nil
}

func (b *builder) writeSBOM(arch string, _ tree) error {
	text, err := b.sbom(filepath.Join(b.stage, arch, "gosmc"))
	if err != nil {
		return err
	}
	return b.create("gosmc-"+b.release.packageVersion()+"-linux-"+arch+".spdx.json", func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}
