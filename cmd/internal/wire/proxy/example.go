package proxy

import (
	_ "embed"
	"fmt"

	"github.com/spf13/cobra"
)

//go:embed example.yaml
var exampleDocument string

func exampleCommand() *cobra.Command {
	return &cobra.Command{
		Use: "example", Short: "Print a document that works, to begin with", Args: cobra.NoArgs,
		Example: "  proxy example >routes.yaml\n  proxy serve --document routes.yaml --http 127.0.0.1:8080",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), exampleDocument)
			return err
		},
	}
}
