package http1

import (
	"sync/atomic"
	"time"
)

// Date is the Date of own answers (RFC 9110, section 6.6.1), formatted once a second. The zero value is ready.
type Date struct{ last atomic.Pointer[date] }

type date struct {
	second int64
	text   string
}

// At gives the text of a time.
func (d *Date) At(now time.Time) string {
	last := d.last.Load()
	if last == nil || last.second != now.Unix() {
		last = &date{now.Unix(), now.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT")}
		d.last.Store(last)
	}
	return last.text
}
