package globalrouter

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/cellgate/cellgate/globalrouter/locate"
	"github.com/cellgate/cellgate/problem"
)

// GeoEntry is one line of a geo file: the clients of a prefix belong to a locality of the plan.
type GeoEntry struct {
	Prefix   netip.Prefix
	Locality string
	Line     int
}

// ReadGeo reads lines of "PREFIX LOCALITY"; # begins a comment. The error is a problem.List.
func ReadGeo(file string, text []byte) ([]GeoEntry, error) {
	var all []GeoEntry
	var problems problem.List
	seen := map[netip.Prefix]string{}
	line := 0
	for raw := range strings.Lines(string(text)) {
		line++
		before, _, _ := strings.Cut(raw, "#")
		fields := strings.Fields(before)
		if len(fields) == 0 {
			continue
		}
		e, err := geoLine(fields)
		if err == nil && seen[e.Prefix] != "" && seen[e.Prefix] != e.Locality {
			err = fmt.Errorf("%s belongs to %q already", e.Prefix, seen[e.Prefix])
		}
		if err == nil && len(all) == locate.MaxEntries {
			err = fmt.Errorf("more than %d prefixes", locate.MaxEntries)
		}
		if err != nil {
			if problems = append(problems, problem.Problem{File: file, Line: line, Message: err.Error()}); len(problems) == 100 {
				break
			}
			continue
		}
		e.Line, seen[e.Prefix] = line, e.Locality
		all = append(all, e)
	}
	return all, problems.Err()
}

func geoLine(fields []string) (GeoEntry, error) {
	if len(fields) != 2 {
		return GeoEntry{}, fmt.Errorf("%q is not PREFIX LOCALITY", strings.Join(fields, " "))
	}
	p, err := netip.ParsePrefix(fields[0])
	switch {
	case err != nil:
		return GeoEntry{}, fmt.Errorf("%q is not a prefix such as 192.0.2.0/24", fields[0])
	case p.Addr().Is4In6():
		return GeoEntry{}, fmt.Errorf("%s is IPv4 written as IPv6", fields[0])
	case p != p.Masked():
		return GeoEntry{}, fmt.Errorf("%s has host bits; the prefix is %s", fields[0], p.Masked())
	}
	return GeoEntry{Prefix: p, Locality: fields[1]}, nil
}
