// Command cellgate runs a whole world of gateway cells on one machine.
package main

import (
	"os"

	"github.com/cellgate/cellgate/cmd/internal/wire/cellgate"
)

func main() { os.Exit(cellgate.Main(os.Args[1:], os.Stdout, os.Stderr)) }
