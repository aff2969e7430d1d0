// Command protogen regenerates the Go code of a .proto file beside it with the plugin versions that go.mod pins.
// It needs protoc (Debian package protobuf-compiler).
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(files []string) error {
	args := []string{"--go_out=.", "--go_opt=paths=source_relative", "--go-grpc_out=.", "--go-grpc_opt=paths=source_relative"}
	for _, tool := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		path, err := exec.Command("go", "tool", "-n", tool).Output()
		if err != nil {
			return fmt.Errorf("go tool -n %s: %w", tool, err)
		}
		args = append(args, "--plugin="+tool+"="+strings.TrimSpace(string(path)))
	}
	args = append(args, "--proto_path="+filepath.Dir(files[0]))
	cmd := exec.Command("protoc", append(args, files...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}
