//go:build long

package program_test

import "testing"

func TestEveryWrongPlaceIsNamedOrCompiles(t *testing.T) { wrongPlaces(t, 1) }
