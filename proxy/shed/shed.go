// Package shed decides who is served when not everybody can be: by class, the lowest first. Limit bounds the exchanges under
// way at one upstream and finds the bound out by itself; Guard protects the node.
//
//	if !l.Enter(class, now) { … 503 }
//	…
//	l.Leave(took, ok, now)
//
//	level := guard.Step(gauges)                   // ten times a second
//	if shed.Sheds(level, class, random) { … 503 }
package shed

import "github.com/cellgate/cellgate/cells"

// Class is a priority by its rank.
type Class uint8

// The classes, the first to be shed first.
const (
	Background Class = iota
	Normal
	Critical
	Classes = 3
)

// Of is the class of a priority.
func Of(p cells.Priority) Class {
	switch p {
	case cells.PriorityCritical:
		return Critical
	case cells.PriorityBackground:
		return Background
	}
	return Normal
}

// The part of a limit, in percent, up to which a class is let in: what is above is kept for those of a higher one.
func upTo(c Class) int64 {
	switch c {
	case Background:
		return 70
	case Normal:
		return 90
	}
	return 100
}

// Level is how much a node sheds, in thousandths: of background up to 1000, of normal up to 2000, of critical up to 3000.
type Level uint32

// Sheds says whether one exchange of the class is shed at this level.
func Sheds(l Level, c Class, random uint64) bool {
	if uint32(l) <= uint32(c)*1000 {
		return false
	}
	return random%1000 < uint64(l)-uint64(c)*1000
}
