package tally

import (
	"testing"

	"github.com/cellgate/cellgate/proxy/http3"
	"github.com/cellgate/cellgate/proxy/shed"
)

func TestATallyTellsWhatItHasCounted(t *testing.T) {
	var of Tally
	of.Connections.Add(4)
	of.InFlight.Add(3)
	of.Tunnels.Add(2)
	of.Requests.Add(9)
	of.Faults[11].Add(5)
	of.Faults3[http3.DecoderStreamError.Place()].Add(6)
	for c := range shed.Class(shed.Classes) {
		of.Spare(c)
	}
	of.Spare(0)
	want := Numbers{Connections: 4, InFlight: 3, Tunnels: 2, Requests: 9, Shed: [shed.Classes]uint64{2, 1, 1}}
	want.Faults[11], want.Faults3[http3.Codes-1] = 5, 6
	if got := of.Now(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
