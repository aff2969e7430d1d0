package main

import (
	"context"
	"math/rand/v2"
	"time"
)

// drawn is what chance has chosen for one fault.
type drawn struct {
	process process
	cell    cell
	node    process // a proxy of the cell
	region  string
	caller  caller
	bad     string
	length  time.Duration
	coin    bool
	pick    uint64
}

func (h *chaos) chance(r *rand.Rand) drawn {
	all, _ := h.w.processes()
	cells := h.w.cells()
	d := drawn{process: all[r.IntN(len(all))], cell: cells[r.IntN(len(cells))], region: h.w.Regions[r.IntN(len(h.w.Regions))].ID,
		caller: h.others[r.IntN(len(h.others))], bad: []string{deadUpstream, failingRoute}[r.IntN(2)],
		length: time.Duration(1000+r.IntN(5000)) * time.Millisecond, coin: r.IntN(2) == 0, pick: r.Uint64()}
	d.node = process{Role: "proxy", ID: d.cell.Proxies[r.IntN(len(d.cell.Proxies))].ID}
	return d
}

// kind is one way to harm the world, and how often it is chosen.
type kind struct {
	weight int
	fault  func(drawn) fault
}

func (h *chaos) kinds() []kind {
	const config, room, global, controllers = "config", "room", "global store", "controllers"
	return []kind{
		{8, func(d drawn) fault { return fault{holds(d.process), func(context.Context) { h.kill(d.process) }} }},
		{4, func(d drawn) fault {
			return fault{holds(d.process), func(context.Context) { h.hang(d.process, min(d.length, 4*time.Second)) }}
		}},
		{4, func(d drawn) fault {
			return fault{holds(d.process), func(context.Context) { h.stopStart(d.process, d.length) }}
		}},
		{4, func(d drawn) fault { return fault{[]string{config}, func(context.Context) { h.publish("") }} }},
		{2, func(d drawn) fault { return fault{[]string{config}, func(context.Context) { h.publish(d.bad) }} }},
		{2, func(d drawn) fault { return fault{[]string{config}, func(context.Context) { h.rollBack(d.pick) }} }},
		{2, func(d drawn) fault {
			return fault{[]string{room}, func(ctx context.Context) { h.evacuate(ctx, d.cell.ID, d.length) }}
		}},
		{1, func(d drawn) fault {
			return fault{[]string{room}, func(ctx context.Context) { h.evacuate(ctx, d.region, d.length) }}
		}},
		{1, func(d drawn) fault {
			return fault{[]string{room, "cell " + d.cell.ID}, func(context.Context) { h.loseCell(d.cell, d.length) }}
		}},
		{1, func(d drawn) fault {
			return fault{[]string{room, "cell " + d.cell.ID}, func(context.Context) { h.killCell(d.cell) }}
		}},
		{1, func(d drawn) fault {
			return fault{[]string{controllers}, func(context.Context) { h.stopAll("regionctl/*", 2*d.length) }}
		}},
		{1, func(d drawn) fault {
			return fault{[]string{controllers}, func(context.Context) { h.killAll("regionctl/*") }}
		}},
		{1, func(d drawn) fault { return fault{[]string{global}, func(context.Context) { h.killAll("etcd/*") }} }},
		{2, func(d drawn) fault {
			return fault{[]string{"denials"}, func(ctx context.Context) { h.deny(ctx, d.caller, "", d.length) }}
		}},
		{2, func(d drawn) fault { // what an evacuated cell hands on is judged by another region's list
			return fault{[]string{"denials", room}, func(ctx context.Context) { h.deny(ctx, d.caller, d.region, d.length) }}
		}},
		{2, func(d drawn) fault {
			return fault{[]string{room, global, controllers, config}, func(ctx context.Context) { h.breakGlass(ctx, d.cell, d.length) }}
		}},
		{2, func(d drawn) fault {
			return fault{[]string{global, "store " + d.region, controllers}, func(context.Context) { h.freeze(d.region, 3*d.length) }}
		}},
		{2, func(d drawn) fault {
			return fault{[]string{"cell " + d.cell.ID}, func(context.Context) { h.loseDisk(d.node, min(d.length, 3*time.Second)) }}
		}},
	}
}

// everyKind does each thing once, in a random order, so that a short run meets all.
func (h *chaos) everyKind(ctx context.Context, r *rand.Rand) {
	all := h.kinds()
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, k := range all {
		f := k.fault(h.chance(r))
		for ctx.Err() == nil && !h.take(f.holds) {
			sleep(ctx, 200*time.Millisecond)
		}
		if ctx.Err() == nil {
			h.start(ctx, f)
		}
	}
}

func (h *chaos) draw(r *rand.Rand) fault {
	all, sum := h.kinds(), 0
	for _, k := range all {
		sum += k.weight
	}
	d, n := h.chance(r), r.IntN(sum)
	for _, k := range all {
		if n -= k.weight; n < 0 {
			return k.fault(d)
		}
	}
	panic("unreachable")
}
