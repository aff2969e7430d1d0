package shed

import "time"

// Gauges are what a node sees of itself since the last step; a negative or zero one is not known.
type Gauges struct {
	// CPU is the part of its cores that the node has used, 0…1.
	CPU float64
	// Lag is how long what is ready to go on waits for a core.
	Lag time.Duration
	// Memory is the part of what the node may have, and Pools of the connections that it may hold open.
	Memory, Pools float64
}

// Goal says from when on a node sheds; zero values are the defaults.
type Goal struct {
	CPU    float64       // with Lag; 0.85
	Lag    time.Duration // 20 ms
	Memory float64       // 0.90
	Pools  float64       // 0.90
}

// Guard turns gauges into a level, step by step: while the node is over its goal the level rises, the more the quicker, and it
// falls slowly, so that it finds the part of the load that the node can carry. A busy node is not overloaded: only when its
// exchanges also wait for their turn does it shed for the CPU's sake. The zero value sheds nothing.
type Guard struct {
	Goal  Goal
	level float64
	last  float64 // how far over the goal the node was
}

// hard is the part of memory or pools from which critical exchanges are shed too: the alternative is to die.
const hard = 0.98

// Step takes one look, about ten times a second.
func (g *Guard) Step(at Gauges) Level {
	goal := g.Goal.orDefault()
	over := max(at.Memory/goal.Memory, at.Pools/goal.Pools)
	if at.CPU >= goal.CPU {
		over = max(over, float64(at.Lag)/float64(goal.Lag))
	}
	falling := over < 0.95*g.last
	switch g.last = over; {
	case over > 1 && !falling:
		g.level += min(0.25, 0.02+0.05*(over-1))
	case over > 1: // what was shed begins to tell
	case over > 0.8 || at.CPU >= goal.CPU: // only a try shows whether more can be carried
		g.level -= 0.01
	default:
		g.level -= 0.03
	}
	most := 2.0
	if at.Memory >= hard || at.Pools >= hard {
		most = 3
	}
	g.level = min(most, max(0, g.level))
	return Level(g.level * 1000)
}

func (g Goal) orDefault() Goal {
	usual := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	usual(&g.CPU, 0.85)
	usual(&g.Memory, 0.90)
	usual(&g.Pools, 0.90)
	if g.Lag == 0 {
		g.Lag = 20 * time.Millisecond
	}
	return g
}
