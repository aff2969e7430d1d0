// Package proxy is the data plane of one node: the exchange (one request and its answer), the pipeline that it runs
// through, and the live state that outlasts a snapshot. It does no I/O of its own; engines drive it.
//
//	s := proxy.New(proxy.Options{Auth: …, Limits: …, Recorders: …})
//	s.Apply(prog, share)                 // one atomic swap
//	x := s.Acquire(); …                  // an engine fills the request in
//	switch x.Run(now) {                  // Next: forward; Reply: send the own answer; Park: wait for x.Wait(), then Run again
//	}
package proxy
