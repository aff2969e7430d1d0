package regionctl

import (
	"testing"

	"go.uber.org/goleak"
)

// A controller that has stopped leaves no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
