// Package health turns evidence into a verdict: healthy, unhealthy or unknown, with hysteresis and a quorum of vantage points.
// Not seeing a cell is unknown, never unhealthy.
package health

// Status is health's verdict.
type Status uint8

// The verdicts. The zero value is Unknown.
const (
	Unknown Status = iota
	Healthy
	Unhealthy
)

func (s Status) String() string {
	return [...]string{"unknown", "healthy", "unhealthy"}[min(s, Unhealthy)]
}

// Bool is the verdict as status documents print it: true, false, or nil for unknown.
func (s Status) Bool() *bool {
	if s == Unknown {
		return nil
	}
	ok := s == Healthy
	return &ok
}
