package archtest

import (
	"fmt"
	"slices"
	"strings"
)

const module = "github.com/cellgate/cellgate"

// importFaults says which imports of one package break the drawing. Paths of our own packages are module-relative in pkg,
// full in imports.
func importFaults(pkg string, imports []string) []string {
	floor, ok := floorOf(pkg)
	if !ok {
		return []string{pkg + ": no such room in the drawing; give it a floor in internal/archtest"}
	}
	var faults []string
	for _, imp := range imports {
		var why string
		switch own, isOwn := strings.CutPrefix(imp, module+"/"); {
		case isOwn:
			why = ownFault(pkg, floor, own)
		case strings.Contains(strings.Split(imp, "/")[0], "."):
			why = libraryFault(pkg, floor, imp)
		case floor <= judgement && impure(imp):
			why = "judgement and words have no sockets, files, logs or system"
		}
		if why != "" {
			faults = append(faults, fmt.Sprintf("%s imports %s: %s", pkg, imp, why))
		}
	}
	return faults
}

func impure(imp string) bool {
	if imp == "net" {
		return false // judged by the names that are used, see purityFaults
	}
	bad, good := impureImports()
	return slices.ContainsFunc(bad, func(b string) bool { return within(imp, b) }) && !slices.ContainsFunc(good, func(g string) bool { return within(imp, g) })
}

func ownFault(pkg string, floor int, imp string) string {
	other, ok := floorOf(imp)
	switch {
	case !ok:
		return "no such room in the drawing"
	case floor == beside && within(pkg, "test"):
		return ""
	case floor == beside && other != beside:
		return "internal knows no domain word"
	case floor == beside:
		return ""
	case other == beside:
		if floor <= judgement {
			return "floors 0 and 1 use no helpers with hands"
		}
		return ""
	case other > floor:
		return "imports go down only"
	case other < floor || floor == wiring:
		return ""
	case floor <= judgement && !slices.Contains(sameFloor()[pkg], imp):
		return "not on the same-floor list"
	case floor == hands:
		return handsFault(pkg, imp)
	}
	return ""
}

func domain(pkg string) string { return strings.SplitN(pkg, "/", 2)[0] }

func handsFault(pkg, imp string) string {
	if domain(pkg) == domain(imp) || slices.Contains(sharedHands(), domain(imp)) {
		return ""
	}
	return "hands of different domains meet in the wiring, through the consumer's interface"
}

func libraryFault(pkg string, floor int, imp string) string {
	if floor == beside && within(pkg, "test") {
		return ""
	}
	var best library
	for _, l := range libraries() {
		if within(imp, l.path) && len(l.path) > len(best.path) {
			best = l
		}
	}
	if best.path == "" {
		return "a library without a home; list it with a reason"
	}
	if floor <= judgement && !slices.ContainsFunc(pureKeys(), func(p string) bool { return within(imp, p) }) {
		return "not on the short list of pure libraries"
	}
	for _, home := range best.homes {
		if within(pkg, home) || home == "*" && (floor == hands || floor == wiring) {
			return ""
		}
	}
	return fmt.Sprintf("%s lives in %v", best.path, best.homes)
}

func pureKeys() []string {
	var keys []string
	for k := range pureMayImport() {
		keys = append(keys, k)
	}
	return keys
}
