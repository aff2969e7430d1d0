package snapshot

import (
	"net/url"
	"strings"
	"testing"
)

func TestEveryRuleOfCertificatesNamesItsFault(t *testing.T) {
	good := string(testdata(t, "certificates.yaml").Data)
	if _, problems := decodeText(good); len(problems) > 0 {
		t.Fatal(problems)
	}
	begin, end := strings.Index(good, "      ca: |"), strings.Index(good, "      names:")
	pem := good[begin:end]
	swap := func(old, with string) string {
		if !strings.Contains(good, old) {
			t.Fatal(old)
		}
		return strings.Replace(good, old, with, 1)
	}
	names := func(list string) string {
		return good[:end] + "      names: [" + list + "]\nconsumers: [{id: b}]\n"
	}
	leaf := strings.Replace(pem, "      ca: |\n", "", 1)
	lists := func(keys string) string { return good[:end] + "      " + keys + "\n" + good[end:] }
	if _, problems := decodeText(lists("crl_files: [b.crl, a.crl]\n      on_crl_loss: refuse")); len(problems) > 0 {
		t.Error(problems)
	}
	for text, want := range map[string]string{
		lists("crl_files: []"):                                               "policies[0].mtls.crl_files: names none",
		lists("crl_files: ['../a']"):                                         `policies[0].mtls.crl_files: "../a" is not the name of a file`,
		lists("crl_files: [a, b, c, d, e, f, g, h, i]"):                      "policies[0].mtls.crl_files",
		lists("crl_files: [other/a]"):                                        `policy "partners" names the secret "other/a"`,
		lists("on_crl_loss: accept"):                                         "policies[0].mtls.on_crl_loss: has no lists to apply to",
		lists("crl_files: [a]\n      on_crl_loss: ignore"):                   "policies[0].mtls.on_crl_loss",
		swap(pem, ""):                                                        "policies[0].mtls.ca: is missing",
		swap(pem, "      ca: x\n"):                                           "policies[0].mtls.ca: holds 0 certificates in PEM",
		swap(pem, "      ca: |\n"+strings.Repeat(leaf, 33)):                  "policies[0].mtls.ca: holds 33 certificates in PEM",
		swap("CERTIFICATE-----\n        MI", "CERTIFICATE-----\n        MA"): "policies[0].mtls.ca: holds a certificate that can't be read",
		strings.ReplaceAll(good, "CERTIFICATE-----", "PRIVATE KEY-----"):     "policies[0].mtls.ca: holds something else than certificates",
		names(""):   "policies[0].mtls.names: names nobody",
		names("{}"): "policies[0].mtls.names[0]: has exactly one of spiffe, dns and common_name",
		names("{dns: a.example, common_name: x}"):    "policies[0].mtls.names[0]: has exactly one of spiffe, dns and common_name",
		names("{consumer: b}"):                       "policies[0].mtls.names[0]: has exactly one of spiffe, dns and common_name",
		names("{spiffe: 'https://a.example/x'}"):     `policies[0].mtls.names[0].spiffe: "https://a.example/x" is not a SPIFFE id`,
		names("{spiffe: 'spiffe://a.example/x/'}"):   `is not a SPIFFE id`,
		names("{spiffe: 'spiffe://a.example/*/x'}"):  `is not a SPIFFE id`,
		names("{spiffe: 'spiffe://a.example/../x'}"): `is not a SPIFFE id`,
		names("{spiffe: 'spiffe://A.example/x'}"):    `is not a SPIFFE id`,
		names("{spiffe: 'spiffe://*'}"):              `is not a SPIFFE id`,
		names("{dns: '*'}"):                          `policies[0].mtls.names[0].dns: "*" is not a host name`,
		names("{dns: 'a.*.example'}"):                `is not a host name`,
		names(`{dns: "a\0.example"}`):                "policies[0].mtls.names[0].dns: holds control characters",
		names("{dns: a.example}, {dns: A.example}"):  "policies[0].mtls.names[1]: names what an item before it names",
		names("{dns: a.example, consumer: nobody}"):  `policies[0].mtls.names: there is no consumer "nobody"`,
		names("{uri: x}"):                            "policies[0].mtls.names[0].uri: unknown key",
	} {
		if _, problems := decodeText(text); !strings.Contains(strings.Join(problems, "\n"), want) {
			t.Errorf("%s\ngot  %v\nwant %s", text[:min(len(text), 200)], problems, want)
		}
	}
}

func TestSPIFFEIDsAreReadStrictly(t *testing.T) {
	for id, want := range map[string]bool{
		"spiffe://example.com": true, "spiffe://example.com/a/B-c_d.e": true, "spiffe://td_1/x": true,
		"": false, "spiffe://": false, "spiffe:///a": false, "spiffe://example.com/": false, "spiffe://example.com//a": false, "spiffe://example.com/./a": false,
		"spiffe://example.com/a?b": false, "spiffe://example.com/a#b": false, "spiffe://u@example.com/a": false, "spiffe://example.com:1/a": false,
		"SPIFFE://example.com/a": false, "spiffe://example.com/a%2fb": false, "spiffe://example.com/é": false, "spiffe://e/" + strings.Repeat("a", 2048): false,
	} {
		if SPIFFEID(id) != want {
			t.Errorf("%q: %v", id, !want)
		}
	}
}

// FuzzSPIFFEID: what is taken for an id is a URL that has one spelling, and nothing that a field of HTTP couldn't hold.
func FuzzSPIFFEID(f *testing.F) {
	for _, seed := range []string{"spiffe://example.com/a/b", "spiffe://example.com/*", "spiffe://a\x00/b", "spiffe://a/%2f", "spiffe://a:1/b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		if !SPIFFEID(id) {
			return
		}
		u, err := url.Parse(id)
		if err != nil || u.String() != id || u.Scheme != "spiffe" || u.Hostname() != u.Host || u.RawQuery+u.Fragment != "" || u.User != nil || strings.ContainsAny(id, " \r\n\x00,;") {
			t.Errorf("%q: %v %+v", id, err, u)
		}
	})
}
