// Package loop is the engine of event loops: a few threads that share nothing, each with its own epoll set, its own
// listening sockets, its own clients, its own connections to upstreams and its own timers. It drives the same exchanges by
// the same rules as package engine (see package relay), which has what a loop doesn't do itself: WebSockets, TLS towards upstreams.
// An HTTP/1 connection goes there with its exchange; a stream of HTTP/2 sends its exchange there alone, on an errand. Linux only.
//
//	e := loop.New(server, loop.Options{Options: engine.Options{Log: log}})
//	err := e.Run(ctx, plain, secure)   // as engine.Engine.Run
//
// Ownership. Everything of a loop (connections, exchanges under way, timers, buffers) is touched by its own goroutine
// alone. Others leave it a message: what they want done, as a function that runs on the loop. A descriptor is closed by the
// loop that registered it and by nobody else; events carry the generation of the slot they were registered for, so one that
// was on its way when the slot changed hands is ignored. An exchange that waits for something elsewhere (keys, names, a
// place in a pool) carries a generation too, which whoever comes back compares.
//
// A flight is an exchange under way; its side is the client's: a connection of HTTP/1, or a stream of one of HTTP/2, whose
// codec is package http2. What the streams of a connection have to say in one turn goes out together at the turn's end. A
// flight reads no more of an upstream than its side has room for, so that windows and slow clients stop the upstream.
//
// What a turn receives and what it sends goes to the kernel in bundles (package uring), where there are at least two sockets to
// bundle. So a socket may have been received for ahead of its event, and what was sent may still wait for the turn's end.
//
// Events are edge-triggered: the kernel says once that something can be read, and the connection remembers it until a read
// came back short. Not reading is therefore enough to stop a sender, and needs no system call.
package loop
