// Command healthd probes every cell of its world from its region's point of view.
package main

import (
	"os"

	"github.com/cellgate/cellgate/cmd/internal/wire/healthd"
)

func main() { os.Exit(healthd.Main(os.Args[1:], os.Stdout, os.Stderr)) }
