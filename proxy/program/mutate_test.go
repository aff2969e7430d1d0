package program_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/snapshot"
)

// wrong are values that are not meant in any place, or in few.
func wrong() (all []*yaml.Node) {
	for _, text := range []string{
		"null", "''", "' '", "true", "-1", "0", "1.5", "1e400", "99999999999999999999", ".nan", "[]", "{}", "[[]]", "{a: b}", "[a, a]", "[null]", "[1, {}]", "x", "'*'", "../x", "a b",
		"\"a\\u0000b\"", "\"a\\r\\nb: c\"", "'{a}'", "'[::1'", "'https://'", "0s", "-5s", "9999h", "1e9s", "'%zz'", "é", "http://169.254.169.254/", "!!binary aGk=", "2026-12-01", "0x1f",
		strings.Repeat("x", 5000), "[" + strings.Repeat("x, ", 2000) + "]",
	} {
		var n yaml.Node
		if err := yaml.Unmarshal([]byte(text), &n); err != nil {
			panic(text + err.Error())
		}
		all = append(all, n.Content[0])
	}
	return all
}

// mutants calls try with the document changed in one place after the other, and put back.
func mutants(n *yaml.Node, way string, try func(what string)) {
	switch n.Kind {
	case yaml.DocumentNode:
		mutants(n.Content[0], way, try)
	case yaml.MappingNode:
		whole := n.Content
		for i := 0; i+1 < len(whole); i += 2 {
			key, value := whole[i], whole[i+1]
			here := way + "." + key.Value
			n.Content = slices.Delete(slices.Clone(whole), i, i+2)
			try(here + " left out")
			n.Content = append(slices.Clone(whole), key, value)
			try(here + " twice")
			n.Content = whole
			for _, name := range []string{key.Value + "x", strings.ToUpper(key.Value), "", "<<"} {
				old := key.Value
				key.Value = name
				try(fmt.Sprintf("%s called %q", here, name))
				key.Value = old
			}
			exchange(whole, i+1, here, try)
			mutants(value, here, try)
		}
	case yaml.SequenceNode:
		whole := n.Content
		for i := range whole {
			here := fmt.Sprintf("%s[%d]", way, i)
			n.Content = slices.Delete(slices.Clone(whole), i, i+1)
			try(here + " left out")
			n.Content = append(slices.Clone(whole), whole[i])
			try(here + " twice")
			n.Content = whole
			exchange(whole, i, here, try)
			mutants(whole[i], here, try)
		}
	}
}

func exchange(in []*yaml.Node, i int, here string, try func(string)) {
	old := in[i]
	for _, other := range wrong() {
		in[i] = other
		try(here + " = " + other.Tag + " " + other.Value[:min(len(other.Value), 20)])
	}
	in[i] = old
}

// Whatever one place of a document is changed to: the check ends, every problem says where and what to do about it, and a document
// that passes is one that nodes can compile.
func TestOneWrongPlaceIsNamedOrCompiles(t *testing.T) { wrongPlaces(t, 97) }

// wrongPlaces looks at one change of so many.
func wrongPlaces(t *testing.T, every int) {
	names, err := filepath.Glob("../../snapshot/testdata/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "ten-faults.yaml") {
			continue
		}
		t.Run(filepath.Base(name), func(t *testing.T) {
			raw, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var doc yaml.Node
			if err := yaml.Unmarshal(raw, &doc); err != nil {
				t.Fatal(err)
			}
			seen, tried, passed := 0, 0, 0
			mutants(&doc, "", func(what string) {
				if seen++; seen%every != 0 {
					return
				}
				text, err := yaml.Marshal(&doc)
				if err != nil {
					return
				}
				tried++
				cfg, problems := program.Validate([]snapshot.File{{Name: "doc.yaml", Data: text}}, snapshot.Loopback())
				for _, p := range problems {
					if p.File != "doc.yaml" || p.Line < 1 || p.Line > 1+strings.Count(string(text), "\n") || p.Message == "" || p.Hint == "" || !utf8.ValidString(p.String()) || strings.ContainsAny(p.String(), "\x00\r\n") {
						t.Errorf("%s: %q", what, p)
					}
				}
				if len(problems) > 0 {
					return
				}
				passed++
				s, err := snapshot.Seal(cfg, snapshot.Meta{Number: 1})
				if err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
				if _, err := program.Compile(s, nil); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			})
			t.Logf("%d changes, %d pass", tried, passed)
		})
	}
}
