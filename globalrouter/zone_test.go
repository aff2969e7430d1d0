package globalrouter

import (
	"strings"
	"testing"
)

const testZone = `$ORIGIN gw.test.
$TTL 300
@        IN SOA ns1 hostmaster 7 3600 600 86400 20
@        IN NS ns1
@        IN NS ns.elsewhere.net.
@        IN TXT "apex"
@        IN CAA 0 issue "ca.example"
ns1      IN A 192.0.2.53
www      IN CNAME api
out      IN CNAME www.example.com.
*.loop   IN CNAME again.loop
Docs     IN A 192.0.2.80
docs     IN A 192.0.2.81
docs     IN HTTPS 1 . alpn="h2" ipv4hint=192.0.2.80
six      IN AAAA 2001:db8::6
a.b.ent  IN TXT "below empty non-terminals"
_sip._tcp IN SRV 10 5 5060 docs
mail     IN MX 10 docs
child    IN NS ns.child
child    IN NS ns1
ns.child IN A 192.0.2.54
child    IN DS 1 13 2 0000000000000000000000000000000000000000000000000000000000000000
*.wild   IN A 192.0.2.99
*.wild   IN TXT "wild"
here.wild IN TXT "here"
svc      IN SVCB 1 docs port=8443
`

func mustZone(t testing.TB, text string) *Zone {
	t.Helper()
	z, err := ReadZone("zone", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func TestFaultsOfAZoneFileNameTheirLine(t *testing.T) {
	const head = "$ORIGIN gw.test.\n$TTL 300\n@ IN SOA ns1 h 1 2 3 4 5\n"
	for _, c := range []struct{ name, text, want string }{
		{"no SOA", "$ORIGIN gw.test.\n@ 300 IN A 192.0.2.1\n", "zone:2: the zone has no SOA record"},
		{"empty", "", "zone:1: the zone has no SOA record"},
		{"relative SOA without origin", "@ 300 IN SOA ns1 h 1 2 3 4 5\n", "zone:1: the owner of the SOA record is the root"},
		{"second SOA", head + "@ IN SOA ns2 h 1 2 3 4 5\n", "zone:4: gw.test.: a zone has one SOA record"},
		{"SOA below", head + "x IN SOA ns2 h 1 2 3 4 5\n", "zone:4: x.gw.test.: a zone has one SOA record"},
		{"CNAME beside A", head + "x IN A 192.0.2.1\nx IN CNAME y\n", "zone:5: x.gw.test.: a CNAME record stands alone"},
		{"two CNAMEs", head + "x IN CNAME y\nx IN CNAME z\n", "zone:5: x.gw.test.: a CNAME record stands alone"},
		{"CNAME loop", head + "x IN CNAME y\n\ny IN CNAME x\n", "zone:4: x.gw.test.: its CNAME records are a loop"},
		{"outside", head + "\n\nwww.example.com. IN A 192.0.2.1\n", "zone:6: www.example.com. is outside the zone gw.test."},
		{"bad address", head + "x IN A 192.0.2\n", "zone:4: bad A A"},
		{"bad type", head + "x IN NOPE 1\n", "zone:4: "},
		{"include", head + "$INCLUDE /etc/passwd\n", "zone:4: $INCLUDE directive not allowed"},
		{"class", head + "x CH TXT \"y\"\n", "zone:4: x.gw.test.: class CH is not IN"},
		{"DNAME", head + "x IN DNAME example.com.\n", "zone:4: x.gw.test.: DNAME records are not served"},
		{"open parenthesis", head + "x IN TXT ( \"y\"\n", "zone:"},
		{"long label", head + strings.Repeat("a", 64) + " IN A 192.0.2.1\n", "zone:4: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ReadZone("zone", []byte(c.text))
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestAllFaultsOfAZoneAreToldAtOnce(t *testing.T) {
	_, err := ReadZone("zone", []byte("$ORIGIN gw.test.\n@ 300 IN SOA ns1 h 1 2 3 4 5\nx.test. 1 IN A 192.0.2.1\ny.test. 1 IN A 192.0.2.1\n"))
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("%v", err)
	}
}

func TestNamesAreRelativeToTheSOAWithoutOrigin(t *testing.T) {
	z := mustZone(t, "gw.test. IN SOA ns1 h 1 2 3 4 60\nwww IN A 192.0.2.1\n")
	if _, ok := z.names[wireName("www.gw.test.")]; !ok {
		t.Error("www is not in gw.test")
	}
	if ttl := z.names[wireName("www.gw.test.")][1][0].Header().Ttl; ttl != 60 {
		t.Errorf("TTL %d without $TTL, not the SOA's minimum", ttl)
	}
}

func FuzzReadZone(f *testing.F) {
	f.Add([]byte(testZone))
	f.Add([]byte("a SOA b c 1 2 3 4 5\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 4096 || strings.Contains(strings.ToUpper(string(text)), "$GENERATE") {
			return
		}
		if z, err := ReadZone("zone", text); err == nil {
			if _, err := Compile(z, nil, nil, false); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestFaultsOfAGeoFileNameTheirLine(t *testing.T) {
	_, err := ReadGeo("geo", []byte("# comment\n5.1.0.0/16 eu\n5.1.2.3/16 eu\nx eu\n5.1.0.0/16 us\n1.0.0.0/8\n::ffff:1.2.3.0/120 eu\n"))
	want := "geo:3: 5.1.2.3/16 has host bits; the prefix is 5.1.0.0/16\ngeo:4: \"x\" is not a prefix such as 192.0.2.0/24\n" +
		"geo:5: 5.1.0.0/16 belongs to \"eu\" already\ngeo:6: \"1.0.0.0/8\" is not PREFIX LOCALITY\ngeo:7: ::ffff:1.2.3.0/120 is IPv4 written as IPv6"
	if err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}
