package regionctl

import "github.com/spf13/cobra"

// addOnline adds every command that speaks to a world. Publishing, versions, rollback and explain also stand at the top,
// where service teams look for them.
func addOnline(root, config *cobra.Command) {
	w := &where{}
	w.flags(root)
	config.AddCommand(publishCommand(w), versionsCommand(w), showCommand(w), rollbackCommand(w), explainCommand(w))
	root.AddCommand(
		publishCommand(w), versionsCommand(w), rollbackCommand(w), explainCommand(w),
		statusCommand(w), rolloutCommand(w), cellsCommand(w), evacuateCommand(w), restoreCommand(w), denyCommand(w), keysCommand(w),
		dnsCommand(w), capacityCommand(w), auditCommand(w), recoverCommand(w), drillCommand(w), serveCommand(),
	)
}
