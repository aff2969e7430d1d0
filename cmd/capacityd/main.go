// Command capacityd watches the headroom of its world and what losses would come to.
package main

import (
	"os"

	"github.com/cellgate/cellgate/cmd/internal/wire/capacityd"
)

func main() { os.Exit(capacityd.Main(os.Args[1:], os.Stdout, os.Stderr)) }
