package sockpeek

import (
	"net"
	"testing"
	"time"
)

func TestPeekerSeesDataAndTheEndWithoutReading(t *testing.T) {
	l, err := net.Listen("tcp", "127.22.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var p Peeker
	p.Reset(b)
	if got := p.Look(); got != Quiet {
		t.Fatalf("an idle connection is %d", got)
	}
	wait := func(want State) {
		t.Helper()
		for range 200 {
			if p.Look() == want {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Fatalf("never became %d", want)
	}
	a.Write([]byte("x"))
	wait(Data)
	if n := testing.AllocsPerRun(100, func() { p.Look() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	one := make([]byte, 1)
	if n, err := b.Read(one); n != 1 || err != nil {
		t.Fatalf("the data was taken: %d %v", n, err)
	}
	a.Close()
	wait(Gone)
	b.Close()
	wait(Gone)
}

func TestAResetIsToldFromAnEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.22.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var p Peeker
	if p.Dead() {
		t.Fatal("nothing is dead")
	}
	p.Reset(b)
	_ = a.(*net.TCPConn).CloseWrite()
	for end := time.Now().Add(5 * time.Second); p.Look() != Gone; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the end never comes")
		}
	}
	if p.Dead() {
		t.Fatal("a peer that listens is dead")
	}
	a.Close() // now nobody is there, which only something that is sent tells
	_, _ = b.Write([]byte("x"))
	for end := time.Now().Add(5 * time.Second); !p.Dead(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the reset never comes")
		}
	}
}
