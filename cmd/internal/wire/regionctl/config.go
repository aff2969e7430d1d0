package regionctl

import (
	"github.com/spf13/cobra"
)

// configCommand gathers what is done with configuration documents.
func configCommand() *cobra.Command {
	config := &cobra.Command{Use: "config", Short: "Check, format, compare and publish configuration documents"}
	return config
}
