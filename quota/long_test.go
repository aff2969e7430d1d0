//go:build long

package quota

import "testing"

func TestNoIntervalOfThreeThousandWorldsAdmitsMoreThanIsPromised(t *testing.T) {
	keepsItsPromise(t, worlds, 3000)
}

func TestLoadThatHopsForLongIsAdmittedAtTheLimit(t *testing.T) { hopsKeepTheLimit(t, 20, 120_000*ms) }
