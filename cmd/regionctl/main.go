// Command regionctl is the control plane: its server, and the operators' and service teams' tool.
package main

import (
	"os"

	"github.com/cellgate/cellgate/cmd/internal/wire/regionctl"
)

func main() { os.Exit(regionctl.Main(os.Args[1:], os.Stdout, os.Stderr)) }
