// Package globalrouter is the authoritative DNS service: UDP and TCP servers around the fast path of package answer,
// the slow path for everything else, zone files, and the agent that keeps the newest steering plan.
//
//	zone, err := globalrouter.ReadZone("gw.test.zone", file)
//	table, err := globalrouter.Compile(zone, plan, geo, false)
//	server := &globalrouter.Server{Listen: addrs, Log: log}
//	server.Swap(table)
//	err = server.Run(ctx)
package globalrouter
