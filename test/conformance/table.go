package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
)

// row is what one suite says of one engine over one protocol.
type row struct {
	suite, protocol, engine string
	passed, total           int
	again                   int // of those that passed: at the second time, alone
	known                   int // of those that fail: a fault that isn't ours, named in docs/conformance.md
}

// whole says that everything was asked, and passed but for what is known. A suite that asked nothing has not passed.
func (x row) whole() bool { return x.total > 0 && x.passed+x.known == x.total }

func (x row) figures() string {
	s := fmt.Sprintf("%d/%d", x.passed, x.total)
	if x.known > 0 {
		s += fmt.Sprintf(" (%d known)", x.known)
	}
	if x.again > 0 {
		s += fmt.Sprintf(" (%d at the second time)", x.again)
	}
	return s
}

// add takes a row, and says it at once: the whole takes minutes.
func (r *run) add(x row) {
	r.rows = append(r.rows, x)
	fmt.Fprintf(os.Stderr, "== %s, %s, %s: %s\n", x.suite, x.protocol, x.engine, x.figures())
}

func table(rows []row) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "suite\tprotocol\tengine\tpassed")
	for _, x := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", x.suite, x.protocol, x.engine, x.figures())
	}
	_ = w.Flush() // a Builder takes everything
	return b.String()
}

// shortfall is an error unless every row is whole.
func shortfall(rows []row) error {
	bad := 0
	for _, x := range rows {
		if !x.whole() {
			bad++
		}
	}
	if bad > 0 || len(rows) == 0 {
		return fmt.Errorf("%d of %d rows are not whole", bad, len(rows))
	}
	return nil
}
