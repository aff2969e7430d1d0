// Package uring carries out sends and receives on many sockets in one system call, by io_uring(7). It is not asynchronous:
// the sockets never block, so all that was asked is over when Do returns, and nothing of it lives on in the kernel.
//
//	r, err := uring.New(64)       // an error: this kernel, or whoever confines the process, doesn't have it
//	r.Receive(fd, buffer)
//	r.Send(other, bytes)
//	for i, n := range r.Do() {…}  // bytes, or an errno below zero; NotDone: ask the kernel without a ring
//
// A call into the kernel costs more than what it does with a short message, most of all where the kernel keeps its memory apart
// (page-table isolation), because each call then empties the processor's address caches twice. Linux 5.19 and later.
package uring
