package sockclose

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Clients that connect all the time are served to the last; after it they are refused, and none is reset.
func TestNobodyIsResetWhenAListenerCloses(t *testing.T) {
	cfg := net.ListenConfig{}
	cfg.SetMultipathTCP(false)
	l, err := cfg.Listen(context.Background(), "tcp", "127.27.3.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepting := make(chan struct{})
	var serving sync.WaitGroup
	go func() {
		defer close(accepting)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Add(1)
			go func() {
				defer serving.Done()
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(5 * time.Second))
				b := make([]byte, 1)
				if _, err := c.Read(b); err == nil {
					_, _ = c.Write(b)
				}
			}()
		}
	}()
	var clients sync.WaitGroup
	var served, after atomic.Int64
	var quiet atomic.Bool
	for range 16 {
		clients.Add(1)
		go func() {
			defer clients.Done()
			for {
				late := quiet.Load()
				err := once(l.Addr().String())
				switch {
				case errors.Is(err, syscall.ECONNREFUSED):
					return
				case err != nil:
					t.Error(err)
					return
				case late:
					after.Add(1)
				}
				served.Add(1)
			}
		}()
	}
	time.Sleep(100 * time.Millisecond)
	if err := Quiesce(l); err != nil {
		t.Fatal(err)
	}
	quiet.Store(true)
	time.Sleep(50 * time.Millisecond)
	l.Close()
	<-accepting
	clients.Wait()
	serving.Wait()
	if served.Load() < 100 || after.Load() > 0 {
		t.Fatalf("%d served, %d of them began after the end", served.Load(), after.Load())
	}
}

// once connects, and exchanges a byte.
func once(addr string) error {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	b := []byte{1}
	if _, err := c.Write(b); err != nil {
		return err
	}
	_, err = c.Read(b)
	return err
}
