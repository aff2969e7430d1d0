package cellgate

import (
	"fmt"
	"regexp"
	"strings"
)

// match lists the names that fit any of the patterns, in the order of names. `*` and `?` match slashes too. Every pattern
// must fit something.
func match(patterns, names []string) ([]string, error) {
	fits := map[string]bool{}
	for _, p := range patterns {
		re, err := glob(p)
		if err != nil {
			return nil, err
		}
		found := false
		for _, n := range names {
			if re.MatchString(n) {
				fits[n], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("no process matches %q: `cellgate status` lists them", p)
		}
	}
	var out []string
	for _, n := range names {
		if fits[n] {
			out = append(out, n)
		}
	}
	return out, nil
}

// glob compiles a pattern of `*`, `?` and literal text.
func glob(pattern string) (*regexp.Regexp, error) {
	if pattern == "" {
		return nil, fmt.Errorf("an empty name matches nothing")
	}
	var b strings.Builder
	b.WriteString("^")
	for _, r := range pattern {
		switch r {
		case '*':
			b.WriteString(".*")
		case '?':
			b.WriteString(".")
		default:
			b.WriteString(regexp.QuoteMeta(string(r)))
		}
	}
	b.WriteString("$")
	return regexp.Compile(b.String())
}
