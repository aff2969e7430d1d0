package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
)

// source is one parsed package without its tests.
type source struct {
	pkg   string // module-relative
	fset  *token.FileSet
	files []*ast.File
}

func (s *source) at(n ast.Node) string {
	p := s.fset.Position(n.Pos())
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

func (s *source) each(visit func(ast.Node)) {
	for _, f := range s.files {
		if ast.IsGenerated(f) {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if n != nil {
				visit(n)
			}
			return true
		})
	}
}

// selector gives "time", "Now" for time.Now when time is an import of the file, not a local name.
func selector(n ast.Node) (pkg, name string, ok bool) {
	sel, isSel := n.(*ast.SelectorExpr)
	if !isSel {
		return "", "", false
	}
	x, isIdent := sel.X.(*ast.Ident)
	if !isIdent || x.Obj != nil {
		return "", "", false
	}
	return x.Name, sel.Sel.Name, true
}

// purityFaults says where judgement or words read a clock, roll global dice or start goroutines.
func purityFaults(s *source) []string {
	var faults []string
	s.each(func(n ast.Node) {
		if _, isGo := n.(*ast.GoStmt); isGo {
			faults = append(faults, s.at(n)+": starts a goroutine")
		}
		pkg, name, ok := selector(n)
		if !ok {
			return
		}
		if pkg == "time" && slices.Contains(clockNames(), name) {
			faults = append(faults, s.at(n)+": time."+name+": now is an argument here")
		}
		if pkg == "net" && !slices.Contains(socketlessNames(), name) {
			faults = append(faults, s.at(n)+": net."+name+": no sockets here")
		}
		if pkg == "rand" && !slices.Contains(seededNames(), name) {
			faults = append(faults, s.at(n)+": rand."+name+": the dice are an argument here")
		}
	})
	return faults
}

// stateFaults says where a package has an init function or state of its own.
func stateFaults(s *source) []string {
	var faults []string
	vars := map[string]*ast.ValueSpec{}
	for _, f := range s.files {
		if ast.IsGenerated(f) {
			continue
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				faults = append(faults, s.at(fn)+": init(): nothing happens by importing")
			}
			if gen, ok := d.(*ast.GenDecl); ok && gen.Tok == token.VAR {
				for _, spec := range gen.Specs {
					v := spec.(*ast.ValueSpec)
					faults = append(faults, s.declared(gen, v, vars)...)
				}
			}
		}
	}
	written := s.written(vars)
	for _, name := range sortedKeys(vars) {
		if n, ok := written[name]; ok {
			faults = append(faults, s.at(n)+": writes the package variable "+name)
		}
	}
	return faults
}

// declared judges one var declaration by itself and remembers its names.
func (s *source) declared(gen *ast.GenDecl, v *ast.ValueSpec, vars map[string]*ast.ValueSpec) []string {
	var faults []string
	embedded := gen.Doc != nil && strings.Contains(gen.Doc.Text()+docText(gen.Doc), "go:embed")
	for i, name := range v.Names {
		if name.Name == "_" {
			continue
		}
		vars[name.Name] = v
		var value ast.Expr
		if i < len(v.Values) {
			value = v.Values[i]
		}
		switch {
		case isPool(v.Type) || isPool(typeOf(value)):
			delete(vars, name.Name) // a cache of memory, not state
		case isGuard(v.Type) || isGuard(typeOf(value)) || isMake(value):
			faults = append(faults, s.at(name)+": the package variable "+name.Name+" is made to be changed")
		case value == nil && len(v.Values) == 0 && !embedded:
			faults = append(faults, s.at(name)+": the package variable "+name.Name+" has no value, so something writes it")
		}
	}
	return faults
}

func docText(g *ast.CommentGroup) string {
	var b strings.Builder
	for _, c := range g.List {
		b.WriteString(c.Text)
	}
	return b.String()
}

func typeOf(e ast.Expr) ast.Expr {
	switch e := e.(type) {
	case *ast.CompositeLit:
		return e.Type
	case *ast.UnaryExpr:
		return typeOf(e.X)
	}
	return nil
}

func isPool(t ast.Expr) bool {
	pkg, name, ok := selector(deref(t))
	return ok && pkg == "sync" && name == "Pool"
}

// isGuard is true for types that only make sense when they change.
func isGuard(t ast.Expr) bool {
	t = deref(t)
	if ix, ok := t.(*ast.IndexExpr); ok {
		t = ix.X
	}
	pkg, _, ok := selector(t)
	_, channel := t.(*ast.ChanType)
	return channel || ok && (pkg == "atomic" || pkg == "sync")
}

func isMake(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	fn, ok := call.Fun.(*ast.Ident)
	return ok && fn.Name == "make"
}

func deref(t ast.Expr) ast.Expr {
	if star, ok := t.(*ast.StarExpr); ok {
		return star.X
	}
	return t
}

// written finds assignments to package variables, to their parts, and places that take their address.
func (s *source) written(vars map[string]*ast.ValueSpec) map[string]ast.Node {
	found := map[string]ast.Node{}
	var looked []ast.Expr // right sides of :=, where a pointer to a table's element saves a copy
	mark := func(e ast.Expr, at ast.Node) {
		if id := root(e); id != nil {
			if spec, ok := vars[id.Name]; ok && (id.Obj == nil || id.Obj.Decl == spec) {
				found[id.Name] = at
			}
		}
	}
	s.each(func(n ast.Node) {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				looked = append(looked, n.Rhs...)
				break
			}
			for _, e := range n.Lhs {
				mark(e, n)
			}
		case *ast.IncDecStmt:
			mark(n.X, n)
		case *ast.UnaryExpr:
			_, element := n.X.(*ast.IndexExpr)
			if reading := element && slices.Contains(looked, ast.Expr(n)); n.Op == token.AND && !reading {
				mark(n.X, n)
			}
		case *ast.CallExpr:
			if fn, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 0 && (fn.Name == "delete" || fn.Name == "clear") {
				mark(n.Args[0], n)
			}
		}
	})
	return found
}

// root is the variable at the bottom of x.f[i].g.
func root(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// lengthFaults says which functions are too long.
func lengthFaults(s *source) []string {
	var faults []string
	s.each(func(n ast.Node) {
		fn, ok := n.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			return
		}
		lines := s.fset.Position(fn.End()).Line - s.fset.Position(fn.Pos()).Line + 1
		if _, excused := longFunctions()[s.pkg+"."+fn.Name.Name]; lines > maxFunction && !excused {
			faults = append(faults, fmt.Sprintf("%s: %s has %d lines, more than %d", s.at(fn), fn.Name.Name, lines, maxFunction))
		}
	})
	return faults
}

// docFaults demands the package sentence, and work that is finished.
func docFaults(s *source) []string {
	var faults []string
	documented := false
	for _, f := range s.files {
		if f.Doc != nil {
			first := f.Doc.Text()
			documented = documented || strings.HasPrefix(first, "Package "+f.Name.Name+" ") || f.Name.Name == "main" && strings.HasPrefix(first, "Command ")
		}
		for _, g := range f.Comments {
			for _, c := range g.List {
				for _, mark := range []string{"TO" + "DO", "FIX" + "ME", "XX" + "X"} {
					if strings.Contains(c.Text, mark) && !ast.IsGenerated(f) {
						faults = append(faults, s.at(c)+": a "+mark+" is not finished work")
					}
				}
			}
		}
	}
	if !documented {
		faults = append(faults, s.pkg+": no package sentence (\"Package x …\" or \"Command x …\")")
	}
	return faults
}

// skipFaults says which tests of a test file skip themselves.
func skipFaults(fset *token.FileSet, f *ast.File) []string {
	var faults []string
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil || strings.HasPrefix(fn.Name.Name, "Fuzz") {
			continue
		}
		testers := []map[string]bool{testersOf(fn.Type)} // of the functions around the present node, innermost last
		var open []ast.Node
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			if n == nil {
				if _, lit := open[len(open)-1].(*ast.FuncLit); lit {
					testers = testers[:len(testers)-1]
				}
				open = open[:len(open)-1]
				return true
			}
			open = append(open, n)
			if lit, ok := n.(*ast.FuncLit); ok {
				testers = append(testers, testersOf(lit.Type))
			}
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || !strings.HasPrefix(sel.Sel.Name, "Skip") {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && nearest(testers, x.Name) {
				faults = append(faults, fset.Position(n.Pos()).String()+": skips "+fn.Name.Name)
			}
			return true
		})
	}
	return faults
}

// testersOf maps each parameter to whether it is a testing.T, B or TB.
func testersOf(t *ast.FuncType) map[string]bool {
	found := map[string]bool{}
	for _, p := range t.Params.List {
		typ := deref(p.Type)
		sel, ok := typ.(*ast.SelectorExpr)
		tester := false
		if ok {
			pkg, isIdent := sel.X.(*ast.Ident)
			tester = isIdent && pkg.Name == "testing"
		}
		for _, name := range p.Names {
			found[name.Name] = tester
		}
	}
	return found
}

func nearest(scopes []map[string]bool, name string) bool {
	for _, s := range slices.Backward(scopes) {
		if tester, ok := s[name]; ok {
			return tester
		}
	}
	return false
}

// literals gives the string constants of a file that satisfy keep.
func literals(f *ast.File, keep func(string) bool) map[string]ast.Node {
	found := map[string]ast.Node{}
	ast.Inspect(f, func(n ast.Node) bool {
		if _, isImport := n.(*ast.ImportSpec); isImport {
			return false
		}
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil && keep(text) {
				found[text] = lit
			}
		}
		return true
	})
	return found
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
