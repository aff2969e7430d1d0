package regionctl

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// output is the flag -o of a command that prints a document.
type output struct{ format string }

func (o *output) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", "table", "`FORMAT`: table, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

// check refuses an unknown format before anything is done.
func (o *output) check() error {
	switch o.format {
	case "table", "json", "yaml":
		return nil
	}
	return usage(fmt.Errorf("-o %s: the formats are table, json and yaml", o.format))
}

// print writes the document as asked; table writes the form for people.
func (o *output) print(w io.Writer, v any, table func(t *tabwriter.Writer)) error {
	if o.format == "table" {
		t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		table(t)
		return t.Flush()
	}
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if o.format == "json" {
		_, err = fmt.Fprintf(w, "%s\n", raw)
		return err
	}
	var node yaml.Node // JSON is YAML: reading it as such keeps the order of the keys
	if err := yaml.Unmarshal(raw, &node); err != nil {
		return err
	}
	block(&node)
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(&node); err != nil {
		return err
	}
	return enc.Close()
}

// block turns flow style into block style.
func block(n *yaml.Node) {
	if len(n.Content) > 0 {
		n.Style &^= yaml.FlowStyle
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && !strings.Contains(n.Value, "\n") {
		n.Style = 0
	}
	for _, c := range n.Content {
		block(c)
	}
}

func row(t *tabwriter.Writer, columns ...any) {
	for i, c := range columns {
		if i > 0 {
			fmt.Fprint(t, "\t")
		}
		fmt.Fprint(t, printable(fmt.Sprint(c)))
	}
	fmt.Fprintln(t)
}

// printable shows what is no ordinary text as an escape: reasons and subjects are other people's words, and a terminal
// obeys some of them.
func printable(s string) string {
	odd := func(r rune) bool { return r == utf8.RuneError || !unicode.IsGraphic(r) }
	if !strings.ContainsFunc(s, odd) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if odd(r) {
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func number(v *float64, format string) string {
	if v == nil {
		return "unknown"
	}
	return fmt.Sprintf(format, *v)
}

func percent(v *float64) string {
	if v == nil {
		return "unknown"
	}
	return fmt.Sprintf("%.0f%%", *v*100)
}

func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// short is the beginning of a digest, enough to tell two apart.
func short[T ~string](digest T) string {
	if len(digest) > 12 {
		return string(digest[:12])
	}
	return string(digest)
}
