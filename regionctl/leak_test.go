package regionctl

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/store/etcd/server"
)

// A controller that has stopped leaves no goroutine behind. The same binary is a member of an etcd cluster when it is told
// to be one, so that tests can stop and kill members as what they are: processes.
func TestMain(m *testing.M) {
	if conf := os.Getenv(memberEnv); conf != "" {
		var c server.Config
		err := json.Unmarshal([]byte(conf), &c)
		if err == nil {
			c.Ready = func() { fmt.Println("ready") }
			err = server.Run(context.Background(), c)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// Most tests wait most of the time. -parallel overrules this.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
