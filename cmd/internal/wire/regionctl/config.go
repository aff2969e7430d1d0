package regionctl

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/problem"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/snapshot"
)

// configCommand gathers what is done with configuration documents.
func configCommand() *cobra.Command {
	config := group("config", "Check, format, compare and publish configuration documents")
	config.AddCommand(validateCommand(), fmtCommand(), diffCommand())
	return config
}

// validation is what validate prints as json or yaml.
type validation struct {
	Valid    bool         `json:"valid"`
	Problems problem.List `json:"problems"`
}

func validateCommand() *cobra.Command {
	var permitted []string
	var out output
	cmd := &cobra.Command{
		Use: "validate FILE…", Short: "Report every problem of the documents; needs no server",
		Example: "  regionctl config validate team-orders.yaml shared.yaml",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			cfg, problems, err := validated(cmd, args, permitted)
			if err != nil {
				return err
			}
			v := validation{len(problems) == 0, append(problem.List{}, problems...)}
			err = out.print(cmd.OutOrStdout(), v, func(t *tabwriter.Writer) {
				if v.Valid {
					row(t, "valid: "+counts(cfg))
				}
			})
			if out.format == "table" && err == nil {
				err = printProblems(cmd.OutOrStdout(), problems)
			}
			if err == nil && !v.Valid {
				return errFailed
			}
			return err
		},
	}
	out.flags(cmd)
	allowFlag(cmd, &permitted)
	return cmd
}

func counts(cfg *snapshot.Config) string {
	return fmt.Sprintf("%d routes, %d upstreams, %d policies, %d plans, %d consumers, %d tenants, %d samples",
		len(cfg.Routes), len(cfg.Upstreams), len(cfg.Policies), len(cfg.Plans), len(cfg.Consumers), len(cfg.Tenants), len(cfg.Samples))
}

func printProblems(w io.Writer, problems problem.List) error {
	for _, p := range problems {
		if _, err := fmt.Fprintln(w, p); err != nil {
			return err
		}
	}
	return nil
}

func fmtCommand() *cobra.Command {
	var write bool
	cmd := &cobra.Command{
		Use:     "fmt FILE…",
		Short:   "Print the documents in canonical form (comments are not kept)",
		Example: "  regionctl config fmt team-orders.yaml > canonical.yaml",
		Args:    cobra.MinimumNArgs(1),
	}
	cmd.Flags().BoolVarP(&write, "write", "w", false, "write each file back instead of printing all as one document")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		files, err := documents(args, cmd.InOrStdin())
		if err != nil {
			return err
		}
		if !write {
			text, err := formatted(cmd, files)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		}
		return writeFormatted(cmd, files)
	}
	return cmd
}

// writeFormatted formats all files before it writes any.
func writeFormatted(cmd *cobra.Command, files []snapshot.File) error {
	texts := make([][]byte, len(files))
	for i, f := range files {
		if f.Name == "stdin" {
			return usage(fmt.Errorf("--write needs files, not standard input"))
		}
		text, err := formatted(cmd, []snapshot.File{f})
		if err != nil {
			return err
		}
		texts[i] = text
	}
	for i, f := range files {
		if err := replaceFile(f.Name, texts[i]); err != nil {
			return err
		}
	}
	return nil
}

// replaceFile puts text in place of the file by rename, keeping its mode.
func replaceFile(name string, text []byte) error {
	info, err := os.Stat(name)
	if err != nil {
		return fmt.Errorf("fmt: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".fmt-*")
	if err != nil {
		return fmt.Errorf("fmt: %w", err)
	}
	defer os.Remove(tmp.Name()) // after the rename there is nothing to remove
	_, err = tmp.Write(text)
	for _, step := range []func() error{func() error { return tmp.Chmod(info.Mode().Perm()) }, tmp.Sync, tmp.Close} {
		if err == nil {
			err = step()
		}
	}
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("fmt: %s: %w", name, err)
	}
	return nil
}

// formatted checks documents as a part of a configuration; addresses are left to validate.
func formatted(cmd *cobra.Command, files []snapshot.File) ([]byte, error) {
	cfg, _, problems := snapshot.DecodeAlone(files, snapshot.Loopback())
	if len(problems) > 0 {
		if err := printProblems(cmd.ErrOrStderr(), problems); err != nil {
			return nil, err
		}
		return nil, errFailed
	}
	return snapshot.Format(cfg)
}

func diffCommand() *cobra.Command {
	var permitted []string
	var out output
	cmd := &cobra.Command{
		Use: "diff A B", Short: "Show what changes from document A to document B, whatever their spelling",
		Example: "  regionctl config diff live.yaml new.yaml -o json",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			a, err := sound(cmd, args[:1], permitted)
			if err != nil {
				return err
			}
			b, err := sound(cmd, args[1:], permitted)
			if err != nil {
				return err
			}
			changes, err := snapshot.Diff(a, b)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), append([]snapshot.Change{}, changes...), func(t *tabwriter.Writer) { printChanges(t, changes) })
		},
	}
	out.flags(cmd)
	allowFlag(cmd, &permitted)
	return cmd
}

func printChanges(w io.Writer, changes []snapshot.Change) {
	if len(changes) == 0 {
		fmt.Fprintln(w, "no difference")
	}
	sign := map[string]string{"added": "+", "removed": "-", "changed": "~"}
	for _, c := range changes {
		fmt.Fprintf(w, "%s %s %s\n", sign[c.Op], c.Kind, c.ID)
		for _, f := range c.Fields {
			fmt.Fprintf(w, "    %s: %s → %s\n", f.Path, dash(f.Before), dash(f.After))
		}
	}
}

// sound is the configuration of valid documents; with problems it prints them and fails.
func sound(cmd *cobra.Command, args, permitted []string) (*snapshot.Config, error) {
	cfg, problems, err := validated(cmd, args, permitted)
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		if err := printProblems(cmd.ErrOrStderr(), problems); err != nil {
			return nil, err
		}
		return nil, errFailed
	}
	return cfg, nil
}

func validated(cmd *cobra.Command, args, permitted []string) (*snapshot.Config, problem.List, error) {
	allow, err := parseAllow(permitted)
	if err != nil {
		return nil, nil, err
	}
	files, err := documents(args, cmd.InOrStdin())
	if err != nil {
		return nil, nil, err
	}
	cfg, problems := program.Validate(files, allow)
	return cfg, problems, nil
}

func allowFlag(cmd *cobra.Command, into *[]string) {
	cmd.Flags().StringSliceVar(into, "allow-upstreams", nil, "permit upstreams and identity URLs in these loopback prefixes, such as 127.0.0.0/8")
}

// parseAllow reads --allow-upstreams. It permits loopback prefixes alone: link-local and metadata stay refused.
func parseAllow(prefixes []string) (snapshot.Allow, error) {
	var allow snapshot.Allow
	for _, s := range prefixes {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return allow, usage(fmt.Errorf("--allow-upstreams %q: it takes prefixes such as 127.0.0.0/8", s))
		}
		allow.Upstreams = append(allow.Upstreams, p.Masked())
	}
	allow.PlainURLs = len(allow.Upstreams) > 0
	return allow, nil
}

// documents reads the named documents; "-" is standard input, a directory stands for what it holds.
func documents(args []string, stdin io.Reader) ([]snapshot.File, error) {
	read, err := readFiles(args, stdin)
	if err != nil {
		return nil, err
	}
	files := make([]snapshot.File, len(read))
	for i, f := range read {
		files[i] = snapshot.File{Name: f.Name, Data: []byte(f.Data)}
	}
	return files, nil
}
