package http3

// Settings that are known here.
const (
	settingSectionSize = 0x06
	settingConnect     = 0x08 // RFC 9220
	settingDatagram    = 0x33 // RFC 9297
)

// The bounds of what a client's control stream makes us keep.
const (
	maxKept     = 1 << 10 // bytes of one frame that matters
	maxSettings = 64
)

// Control follows the client's control stream (RFC 9114, section 6.2.1). The zero value is at its beginning, behind the
// stream's type.
type Control struct {
	settled bool
	kept    []byte // a head or a payload that is not whole yet
	skip    uint64 // of a frame that doesn't matter
	goAway  uint64
	maxPush uint64
	gone    bool
	pushes  bool
}

// Feed takes what came. An error is a Code and ends the connection.
func (c *Control) Feed(b []byte) error {
	for {
		n := min(uint64(len(b)), c.skip)
		c.skip -= n
		if b = b[n:]; len(b) == 0 {
			return nil
		}
		used, err := c.frame(append(c.kept, b...))
		if err != nil {
			return err
		}
		if used == 0 {
			c.kept = append(c.kept, b...)
			return nil
		}
		b = b[used-len(c.kept):]
		c.kept = c.kept[:0]
	}
}

// frame takes the frame that b begins with; used is 0 when it matters and is not whole.
func (c *Control) frame(b []byte) (used int, err error) {
	typ, length, n := FrameHead(b)
	if n == 0 {
		return 0, nil
	}
	switch {
	case !c.settled && typ != frameSettings:
		return 0, MissingSettings
	case c.settled && typ == frameSettings:
		return 0, FrameUnexpected
	case !known(typ):
		c.skip = length
		return n, nil
	case typ != frameSettings && typ != frameGoAway && typ != frameMaxPushID && typ != frameCancelPush:
		return 0, FrameUnexpected
	case length > maxKept:
		return 0, ExcessiveLoad
	case uint64(len(b)-n) < length:
		return 0, nil
	}
	payload := b[n : n+int(length)]
	if typ == frameSettings {
		c.settled = true
		return n + int(length), settings(payload)
	}
	return n + int(length), c.id(typ, payload)
}

// id takes a frame that consists of one id.
func (c *Control) id(typ uint64, payload []byte) error {
	v, n := Varint(payload)
	if n == 0 || n != len(payload) {
		return FrameError
	}
	switch typ {
	case frameCancelPush: // none was promised
		return IDError
	case frameGoAway:
		if c.gone && v > c.goAway {
			return IDError
		}
		c.gone, c.goAway = true, v
	case frameMaxPushID:
		if c.pushes && v < c.maxPush {
			return IDError
		}
		c.pushes, c.maxPush = true, v
	}
	return nil
}

// settings checks the client's (section 7.2.4). None of them changes what is done here: there are no tables and no
// datagrams, and the size of a section is advice.
func settings(b []byte) error {
	var seen [maxSettings]uint64
	for count := 0; len(b) > 0; count++ {
		id, n := Varint(b)
		v, m := Varint(b[n:])
		if n == 0 || m == 0 {
			return FrameError
		}
		b = b[n+m:]
		if count == maxSettings {
			return ExcessiveLoad
		}
		for _, s := range seen[:count] {
			if s == id {
				return SettingsError
			}
		}
		seen[count] = id
		switch {
		case id == 0x00, id >= 0x02 && id <= 0x05: // of HTTP/2
			return SettingsError
		case (id == settingConnect || id == settingDatagram) && v > 1:
			return SettingsError
		}
	}
	return nil
}

// Instructions follows one of the client's QPACK streams (RFC 9204, section 4). Without a dynamic table hardly any
// instruction is valid.
type Instructions struct {
	Encoder bool // it is the encoder's stream
	inside  bool // an integer goes on
	digits  int
}

// Feed takes what came. An error is a Code and ends the connection.
func (i *Instructions) Feed(b []byte) error {
	for _, c := range b {
		if err := i.take(c); err != nil {
			return err
		}
	}
	return nil
}

func (i *Instructions) take(c byte) error {
	if i.Encoder {
		if c != 0x20 { // a capacity of 0 is all that we allow
			return EncoderStreamError
		}
		return nil
	}
	if !i.inside {
		if c&0xc0 != 0x40 { // only cancellations: nothing of ours refers to a table
			return DecoderStreamError
		}
		i.inside, i.digits = c&0x3f == 0x3f, 0
		return nil
	}
	if i.digits++; i.digits > 9 {
		return DecoderStreamError
	}
	i.inside = c&0x80 != 0
	return nil
}
