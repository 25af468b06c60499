package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const manifests = "../kubernetes"

// A kustomization is the part of a kustomization.yaml that ours use.
type kustomization struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Resources  []string `json:"resources"`
	Images     []struct {
		Name    string `json:"name"`
		NewName string `json:"newName"`
		NewTag  string `json:"newTag"`
	} `json:"images"`
}

// kinds are the types of the API, by version and kind.
var kinds = map[string]func() any{
	"v1 Namespace":      func() any { return new(corev1.Namespace) },
	"v1 Pod":            func() any { return new(corev1.Pod) },
	"apps/v1 DaemonSet": func() any { return new(appsv1.DaemonSet) },
	"kustomize.config.k8s.io/v1beta1 Kustomization": func() any { return new(kustomization) },
}

// parseManifests reads all documents of a file. A field that the type does not have, one that comes
// twice, and a value of another type are errors.
func parseManifests(text []byte) (objects []any, err error) {
	for i, part := range bytes.Split(text, []byte("\n---\n")) {
		var head struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal(part, &head); err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
		kind, ok := kinds[head.APIVersion+" "+head.Kind]
		if !ok {
			return nil, fmt.Errorf("document %d: no kind %q of version %q", i, head.Kind, head.APIVersion)
		}
		object := kind()
		text, err := yaml.YAMLToJSONStrict(part)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
		// As the API server does it: encoding/json would take hostPid for hostPID.
		strict, err := kjson.UnmarshalStrict(text, object)
		if err := errors.Join(append(strict, err)...); err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
		objects = append(objects, object)
	}
	return objects, nil
}

func readManifests(t *testing.T, path string) []any {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := parseManifests(text)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return objects
}

// TestManifests has all manifests be of the types of the API, with volumes, containers and selectors
// that belong together.
func TestManifests(t *testing.T) {
	n := 0
	err := filepath.WalkDir(manifests, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		for _, object := range readManifests(t, path) {
			n++
			switch o := object.(type) {
			case *corev1.Pod:
				checkPod(t, path, o.Spec)
				checkRestricted(t, path, o.Spec)
			case *appsv1.DaemonSet:
				checkPod(t, path, o.Spec.Template.Spec)
				for key, value := range o.Spec.Selector.MatchLabels {
					if o.Spec.Template.Labels[key] != value {
						t.Errorf("%s: the selector wants %s=%s, and pods have %v", path, key, value, o.Spec.Template.Labels)
					}
				}
			case *kustomization:
				for _, resource := range o.Resources {
					readManifests(t, filepath.Join(filepath.Dir(path), resource))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n != 7 {
		t.Errorf("%d documents, want 7: two kustomizations, namespaces and DaemonSets, and a pod", n)
	}
	for what, text := range map[string]string{
		"unknown": "apiVersion: v1\nkind: Pod\nspec: {hostPid: true}",
		"twice":   "apiVersion: v1\nkind: Pod\nspec: {hostPID: true, hostPID: true}",
		"type":    "apiVersion: v1\nkind: Pod\nspec: {hostPID: often}",
		"kind":    "apiVersion: v1\nkind: Daemon",
	} {
		if _, err := parseManifests([]byte(text)); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// checkPod has every mount have its volume, and every volume a mount.
func checkPod(t *testing.T, path string, p corev1.PodSpec) {
	t.Helper()
	if p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken {
		t.Errorf("%s: the pod has a token of the cluster", path)
	}
	mounted := make(map[string]bool)
	for _, c := range slices.Concat(p.InitContainers, p.Containers) {
		if c.SecurityContext == nil || c.SecurityContext.ReadOnlyRootFilesystem == nil || !*c.SecurityContext.ReadOnlyRootFilesystem ||
			c.SecurityContext.Capabilities == nil || !slices.Equal(c.SecurityContext.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: container %s keeps capabilities, or can write to its root file system", path, c.Name)
		}
		if _, ok := c.Resources.Limits[corev1.ResourceMemory]; !ok {
			t.Errorf("%s: container %s has no limit for memory", path, c.Name)
		}
		for _, m := range c.VolumeMounts {
			mounted[m.Name] = true
			if !slices.ContainsFunc(p.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("%s: container %s mounts %s, which is no volume", path, c.Name, m.Name)
			}
		}
	}
	for _, v := range p.Volumes {
		if !mounted[v.Name] {
			t.Errorf("%s: nobody mounts the volume %s", path, v.Name)
		}
	}
}

// checkRestricted has a pod of an application obey the Pod Security Standard "restricted".
func checkRestricted(t *testing.T, path string, p corev1.PodSpec) {
	t.Helper()
	s := p.SecurityContext
	if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
		p.HostPID || p.HostNetwork || p.HostIPC {
		t.Errorf("%s: the pod is not restricted", path)
	}
	for _, c := range slices.Concat(p.InitContainers, p.Containers) {
		if s := c.SecurityContext; s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || len(s.Capabilities.Add) > 0 {
			t.Errorf("%s: container %s is not restricted", path, c.Name)
		}
	}
	for _, v := range p.Volumes {
		if v.EmptyDir == nil {
			t.Errorf("%s: the volume %s is not an emptyDir", path, v.Name)
		}
	}
}

// hostCommand writes the command of the package for this machine to a file.
func hostCommand(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "gosmc")
	if err := os.WriteFile(name, readTarball(t, hostArch())["/gosmc-"+strings.TrimPrefix(newVersion, "v")+"-linux-"+hostArch()+"/bin/gosmc"].bytes, 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// cgroup2 is where control groups of version 2 are mounted.
func cgroup2(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	t.Skip("needs control groups of version 2")
	return ""
}

// TestAgentManifests starts the agent of each DaemonSet with its flags and with no other
// capabilities. It attaches to a control group of the test, and pins in a file system of its own.
func TestAgentManifests(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("needs setpriv")
	}
	gosmc := hostCommand(t)
	for _, name := range []string{"agent", "agent-option"} {
		t.Run(name, func(t *testing.T) {
			var agent corev1.Container
			for _, object := range readManifests(t, filepath.Join(manifests, name, "agent.yaml")) {
				if d, ok := object.(*appsv1.DaemonSet); ok {
					agent = d.Spec.Template.Spec.Containers[0]
				}
			}
			group, err := os.MkdirTemp(cgroup2(t), "gosmc-test-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Remove(group) })
			pins, run := t.TempDir(), t.TempDir()
			// Where a path of the container is on this machine. Each has to be below a mount.
			places := map[string]string{"/host/cgroup": group, "/sys/fs/bpf": pins, "/run": run, "/run/gosmc-agent": run}
			var socket string
			inside := func(args []string) (list []string) {
				for _, arg := range args {
					flag, path, _ := strings.Cut(arg, "=")
					for _, m := range agent.VolumeMounts {
						if rest, ok := strings.CutPrefix(path, m.MountPath); ok && (rest == "" || rest[0] == '/') {
							path, arg = "", flag+"="+places[m.MountPath]+rest
						}
					}
					if strings.HasPrefix(path, "/") {
						t.Errorf("%s is not in a volume", arg)
					}
					if flag == "--socket" {
						socket = strings.TrimPrefix(arg, "--socket=")
					}
					list = append(list, arg)
				}
				return list
			}
			bounding := "-all"
			for _, c := range agent.SecurityContext.Capabilities.Add {
				bounding += ",+" + strings.ToLower(string(c))
			}
			line := append([]string{"setpriv", "--no-new-privs", "--bounding-set=" + bounding, gosmc}, inside(agent.Args)...)
			status := append([]string{gosmc}, inside(agent.ReadinessProbe.Exec.Command[1:])...)
			detach := []string{"setpriv", "--no-new-privs", "--bounding-set=" + bounding, gosmc, "agent", "--detach", "--pins=" + pins + "/gosmc", "--cgroup=" + group}
			script := `mount -t bpf bpf "$1"; d=$2; shift 2; "$@" & agent=$!; while read x; do sh -c "$d"; echo detached $?; done; kill $agent; wait $agent; echo ended $?`
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "unshare", append([]string{"--mount", "--kill-child", "--fork", "--pid", "sh", "-c", script, "sh", pins, strings.Join(detach, " ")}, line...)...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			stdin, err := cmd.StdinPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			for exec.Command(status[0], status[1:]...).Run() != nil {
				if ctx.Err() != nil {
					cmd.Wait()
					t.Fatalf("no agent answers at %s:\n%s", socket, &out)
				}
				time.Sleep(50 * time.Millisecond)
			}
			said, err := exec.Command(gosmc, "agent", "--status", "--socket="+socket).CombinedOutput()
			if want := "attached to " + group; err != nil || !strings.Contains(string(said), want) {
				t.Errorf("status: %s, %v; want %q in it", said, err, want)
			}
			fmt.Fprintln(stdin, "detach")
			stdin.Close()
			if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "detached 0\n") || !strings.Contains(out.String(), "ended 0\n") {
				t.Errorf("detach and end: %v\n%s", err, &out)
			}
		})
	}
}
