// Command globalrouter is the authoritative DNS server that steers clients to cells.
package main

import (
	"os"

	"github.com/cellgate/cellgate/cmd/internal/wire/globalrouter"
)

func main() { os.Exit(globalrouter.Main(os.Args[1:], os.Stdout, os.Stderr)) }
