// Command proxy is a gateway node: it takes requests in, decides about them by its snapshot, and forwards them.
package main

import (
	"io"
	"log"
	"os"

	"github.com/cellgate/cellgate/cmd/internal/wire/proxy"
)

func main() {
	log.SetOutput(io.Discard) // where net/http's clients write what servers send unasked, whole and as often as they do
	os.Exit(proxy.Main(os.Args[1:], os.Stdout, os.Stderr))
}
