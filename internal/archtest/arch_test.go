package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// listed is what `go list -json` says of a package.
type listed struct {
	ImportPath, Name, Dir string
	GoFiles, Imports      []string
	Standard              bool
	Module                *struct{ Path string }
}

func goList(t *testing.T, args ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-pgo=off", "-json=ImportPath,Name,Dir,GoFiles,Imports,Standard,Module"}, args...)...)
	cmd.Dir = filepath.Join("..", "..")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func relative(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, module), "/") }

func parse(t *testing.T, p listed) *source {
	t.Helper()
	s := &source{pkg: relative(p.ImportPath), fset: token.NewFileSet()}
	for _, name := range p.GoFiles {
		raw, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(s.fset, filepath.Join(s.pkg, name), raw, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		s.files = append(s.files, f)
	}
	return s
}

func report(t *testing.T, faults []string) {
	t.Helper()
	for _, f := range faults {
		t.Error(f)
	}
}

func TestTheCodeIsAsDrawn(t *testing.T) {
	packages := goList(t, "./...")
	if len(packages) < 10 {
		t.Fatalf("only %d packages are seen", len(packages))
	}
	for _, p := range packages {
		if len(p.GoFiles) == 0 {
			continue // tests alone
		}
		pkg := relative(p.ImportPath)
		report(t, importFaults(pkg, p.Imports))
		s := parse(t, p)
		report(t, lengthFaults(s))
		report(t, docFaults(s))
		if floor, _ := floorOf(pkg); floor <= judgement {
			report(t, purityFaults(s))
		}
		if !within(pkg, "test") {
			report(t, stateFaults(s))
		}
		if p.Name == "main" && within(pkg, "cmd") {
			report(t, mainFaults(s))
		}
	}
}

// mainFaults: a command is one short file that calls its wiring.
func mainFaults(s *source) []string {
	var faults []string
	if len(s.files) != 1 {
		faults = append(faults, s.pkg+": a command has one file, main.go")
	}
	for _, f := range s.files {
		if lines := s.fset.Position(f.FileEnd).Line; lines > maxMain {
			faults = append(faults, s.pkg+": main.go is too long; wiring belongs into cmd/internal/wire")
		}
	}
	return faults
}

func TestTheProxyRootStaysSmall(t *testing.T) {
	lines := 0
	for _, p := range goList(t, "./proxy") {
		for _, name := range p.GoFiles {
			raw, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			lines += bytes.Count(raw, []byte("\n"))
		}
	}
	if lines == 0 || lines > maxRoot {
		t.Fatalf("the proxy root has %d lines, at most %d: what can be said without the word exchange becomes a leaf", lines, maxRoot)
	}
}

// What keys.go spells, nobody else does.
func TestOnlyKeysSpellsKeys(t *testing.T) {
	keys := map[string]bool{}
	var others []*source
	for _, p := range goList(t, "./...") {
		s := parse(t, p)
		for i, name := range p.GoFiles {
			if s.pkg == "store" && name == "keys.go" {
				for text := range literals(s.files[i], func(s string) bool { return len(s) > 3 && strings.Contains(s, "/") }) {
					keys[text] = true
				}
				s.files = slices.Delete(slices.Clone(s.files), i, i+1)
			}
		}
		if !within(s.pkg, "cmd") && !within(s.pkg, "test") { // URLs of the API are spelled alike and are no keys
			others = append(others, s)
		}
	}
	for _, s := range others {
		for _, f := range s.files {
			for text, n := range literals(f, func(text string) bool { return keys[text] }) {
				t.Errorf("%s: spells the key %q, which store/keys.go owns", s.at(n), text)
			}
		}
	}
}

// No test is skipped: one that can't run here doesn't exist. Rejecting a sample in a property or fuzz test is no skip.
func TestNothingIsSkipped(t *testing.T) {
	rootDir := filepath.Join("..", "..")
	err := filepath.WalkDir(rootDir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != rootDir {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		report(t, skipFaults(fset, f))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func updating() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "rewrite testdata")
	flag.Parse()
	os.Exit(m.Run())
}

// TestBinariesAreMadeOfWhatIsExpected compares each binary's third-party modules and own rooms with testdata/<binary>.deps;
// go test ./internal/archtest -update rewrites them. Look at what the difference says before doing so.
func TestBinariesAreMadeOfWhatIsExpected(t *testing.T) {
	all := goList(t, "-deps", "./cmd/...")
	byPath := map[string]listed{}
	for _, p := range all {
		byPath[p.ImportPath] = p
	}
	for _, p := range all {
		pkg := relative(p.ImportPath)
		if p.Name != "main" || filepath.Dir(pkg) != "cmd" {
			continue
		}
		name := filepath.Base(pkg)
		linked := closure(byPath, p.ImportPath)
		for _, dep := range linked {
			report(t, linkFaults(name, dep))
		}
		golden(t, name, summary(byPath, linked))
	}
}

func closure(byPath map[string]listed, from string) []string {
	seen := map[string]bool{from: true}
	for queue := []string{from}; len(queue) > 0; {
		p := byPath[queue[0]]
		queue = queue[1:]
		for _, imp := range p.Imports {
			if !seen[imp] {
				seen[imp] = true
				queue = append(queue, imp)
			}
		}
	}
	return sortedKeys(seen)
}

// linkFaults judges one package (full path) in one binary.
func linkFaults(binary, dep string) []string {
	pkg := relative(dep)
	for _, except := range exceptNever() {
		if within(pkg, except) {
			return nil
		}
	}
	for _, never := range neverIn()[binary] {
		if within(pkg, never) || within(dep, never) {
			return []string{"the binary " + binary + " contains " + pkg}
		}
	}
	return nil
}

func summary(byPath map[string]listed, linked []string) string {
	lines := map[string]bool{}
	for _, path := range linked {
		p := byPath[path]
		switch {
		case p.Standard || p.Module == nil:
		case p.Module.Path == module:
			lines[domain(relative(path))] = true
		default:
			lines[p.Module.Path] = true
		}
	}
	return strings.Join(sortedKeys(lines), "\n") + "\n"
}

func golden(t *testing.T, binary, got string) {
	t.Helper()
	path := filepath.Join("testdata", binary+".deps")
	if updating() {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil || string(want) != got {
		t.Errorf("%s is made of other things than %s says (%v); if that is meant: go test ./internal/archtest -update\ngot:\n%s", binary, path, err, got)
	}
}
