package etcd_test

import (
	"flag"
	"os"
	"testing"
)

// Tests of members wait most of the time. -parallel overrules this.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
