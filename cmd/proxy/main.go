// Command proxy is a gateway node: it takes requests in, decides about them by its snapshot, and forwards them.
package main

import (
	"os"

	"github.com/cellgate/cellgate/cmd/internal/wire/proxy"
)

func main() { os.Exit(proxy.Main(os.Args[1:], os.Stdout, os.Stderr)) }
