package proxy

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cellgate/cellgate/proxy/hops"
	"github.com/cellgate/cellgate/proxy/traces"
	"github.com/cellgate/cellgate/snapshot"
)

// flags are those of serve.
type flags struct {
	document, bootstrap    string
	http, https, cert, key string
	h3                     bool
	admin, engine          string
	workers                int
	accessLog, state       string
	secretsDir             string
	ticketSecrets          string
	takeover               bool
	region, zone           string
	consul, consulToken    string
	otlp, otlpHeaders      string
	otlpCA                 string
	otlpRatio              float64
	maxAge                 time.Duration
	trusted                []string
	believed               hops.Trusted // trusted, once checked
}

// defaultRatio is the share of traces that are sampled.
const defaultRatio = 0.01

func serveCommand() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve a document, or a node of a world, until SIGTERM or SIGINT",
		Long: `Serve a document, or a node of a world, until SIGTERM or SIGINT.

With --document, the node stands alone:

SIGHUP reads the document and the certificate again; a bad document is refused and the old one stays.
SIGUSR1 opens the access log again. --http takes HTTP/1.1 and HTTP/2 with prior knowledge, --https both over TLS,
and with --h3 HTTP/3 over QUIC on the same address. Early data (0-RTT) is not taken: it can be replayed.
The admin server is plain HTTP on loopback: /healthz /readyz /metrics /config.

With --bootstrap, it is a node of a world: it serves what its cell's regionctl publishes, and goes on from its own disk
when no regionctl answers. The admin server is HTTPS for a client certificate or the admin token.

--state names a directory that is this process's alone. It keeps what providers and DNS have told over a restart, and
` + "`proxy upgrade`" + ` finds the process there. With a bootstrap file it is the node's data directory.

Every listener answers GET /.well-known/cellgate/ready: 200, or 503 while the node drains.`,
		Example: `  proxy serve --document routes.yaml --http 127.0.0.1:8080 --admin 127.0.0.1:9901
  proxy serve --document routes.yaml --https :8443 --cert edge.pem --key edge.key --h3 --access-log -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd.Flags()); err != nil {
				return err
			}
			if f.bootstrap != "" {
				return serveWorld(cmd.Context(), f.bootstrap, f.takeover, cmd.ErrOrStderr())
			}
			return serve(cmd.Context(), f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.document, "document", "", "YAML `file` with routes, upstreams, policies, …")
	fs.StringVar(&f.bootstrap, "bootstrap", "", "JSON `file` that says who this node of a world is; takes no other flag")
	fs.StringVar(&f.http, "http", "", "`address` for plain HTTP/1.1 and prior-knowledge HTTP/2")
	fs.StringVar(&f.https, "https", "", "`address` for TLS; serves any name with the certificate of --cert")
	fs.StringVar(&f.cert, "cert", "", "PEM `file` with the certificate chain for --https")
	fs.StringVar(&f.key, "key", "", "PEM `file` with the private key for --https")
	fs.BoolVar(&f.h3, "h3", false, "HTTP/3 on the UDP side of --https, announced in Alt-Svc")
	fs.StringVar(&f.admin, "admin", "", "loopback `address` of the admin server; off unless given")
	fs.StringVar(&f.engine, "engine", defaultEngine, "`engine`: loop (event loops, one a core, which bundle their system calls where the kernel has io_uring; Linux), epoll (the same without io_uring), goroutine (one a connection), or nethttp (the standard library's codecs, for emergencies)")
	fs.IntVar(&f.workers, "workers", 0, "cores to use; 0 = all")
	fs.DurationVar(&f.maxAge, "max-connection-age", 5*time.Minute, "age, give or take a fifth, at which clients are asked to connect anew, so that they follow DNS")
	fs.StringSliceVar(&f.trusted, "trusted-proxies", nil, "`networks` of proxies in front of the node, such as 10.0.0.0/8,192.0.2.7, that are believed about who their clients are")
	fs.StringVar(&f.region, "region", "", "`name` of the region that the node is in: endpoints of upstreams that say theirs are near or far by it")
	fs.StringVar(&f.zone, "zone", "", "`name` of the zone that the node is in, as --region")
	fs.StringVar(&f.consul, "consul", "", "`address` of the Consul agent, host:port or a URL (http, https, unix); what is not given the environment says, as for Consul's own tools (CONSUL_HTTP_ADDR, …), or it is 127.0.0.1:8500")
	fs.StringVar(&f.consulToken, "consul-token-file", "", "`file` with the ACL token for --consul")
	fs.StringVar(&f.otlp, "otlp", "", "`URL` of an OpenTelemetry collector that takes traces (OTLP over HTTP), such as https://collector:4318; none unless given")
	fs.Float64Var(&f.otlpRatio, "otlp-ratio", defaultRatio, "`share` of the traces that begin here which are sent, 0 to 1; failed and slow requests are sent besides")
	fs.StringVar(&f.otlpHeaders, "otlp-headers", "", "`file` with lines of \"Name: value\" that the collector gets, such as a key; read anew for each message")
	fs.StringVar(&f.otlpCA, "otlp-ca", "", "PEM `file` with the authorities that the collector's certificate may be of; the system's unless given")
	fs.StringVar(&f.state, "state", "", "`directory` of what outlives the process, and of its upgrades; none unless given")
	fs.StringVar(&f.secretsDir, "secrets", "", "`directory` with the files that policies name: client secrets, keys of sessions; none unless given")
	fs.StringVar(&f.ticketSecrets, "ticket-secrets", "", "`file` that the nodes behind one address share, 1 to 4 lines of 32 random bytes in base64 (openssl rand -base64 32): a client goes on with its TLS session at any of them; at this process alone unless given")
	fs.BoolVar(&f.takeover, takeoverFlag, false, "take the place of the process that runs with the same --state or --bootstrap, if there is one")
	fs.StringVar(&f.accessLog, "access-log", "", "`file` for one JSON line per exchange; - = standard output; none unless given")
	return c
}

// check refuses what can't work, in words that say what would.
func (f *flags) check(set *pflag.FlagSet) error {
	if f.bootstrap != "" {
		others := set.NFlag() - 1
		if f.takeover {
			others--
		}
		if others > 0 {
			return usagef("--bootstrap FILE takes no other flag but --takeover: the file says everything")
		}
		return nil
	}
	var err error
	if f.believed, err = hops.Parse(f.trusted); err != nil {
		return usagef("--trusted-proxies: %s", err)
	}
	switch {
	case f.document == "":
		return usagef("--document FILE or --bootstrap FILE is required")
	case f.http == "" && f.https == "":
		return usagef("--http ADDR or --https ADDR is required")
	case f.h3 && f.https == "":
		return usagef("--h3 needs --https ADDR: HTTP/3 is served on its UDP side")
	case !slices.Contains(engines(), f.engine):
		return usagef("--engine %q is none of %s", f.engine, strings.Join(engines(), ", "))
	case f.otlp == "" && (set.Changed("otlp-ratio") || f.otlpHeaders != "" || f.otlpCA != ""):
		return usagef("--otlp-ratio, --otlp-headers and --otlp-ca need --otlp URL")
	case !(f.otlpRatio >= 0 && f.otlpRatio <= 1):
		return usagef("--otlp-ratio %v: must be 0 to 1", f.otlpRatio)
	case f.takeover && f.state == "":
		return usagef("--takeover needs --state DIR or --bootstrap FILE, by which the running process is found")
	case f.workers < 0:
		return usagef("--workers %d: must be 0 (all cores) or more", f.workers)
	case f.maxAge <= 0:
		return usagef("--max-connection-age %s: must be more than 0", f.maxAge)
	case f.https != "" && (f.cert == "" || f.key == ""):
		return usagef("--https needs --cert FILE and --key FILE")
	case f.https == "" && f.ticketSecrets != "":
		return usagef("--ticket-secrets needs --https ADDR")
	case f.https == "" && (f.cert != "" || f.key != ""):
		return usagef("--cert and --key need --https ADDR")
	}
	for name, addr := range map[string]string{"--http": f.http, "--https": f.https, "--admin": f.admin} {
		if addr == "" {
			continue
		}
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return usagef("%s %q: not HOST:PORT", name, addr)
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return usagef("%s %q: the port is not a number of 0 to 65535", name, addr)
		}
	}
	if f.otlp != "" {
		if _, err := traces.Endpoint(f.otlp, snapshot.Loopback()); err != nil {
			return usagef("--otlp: %s", err)
		}
	}
	return f.checkAdmin()
}

func (f *flags) checkAdmin() error {
	if f.admin == "" {
		return nil
	}
	host, _, _ := net.SplitHostPort(f.admin)
	if a, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !a.IsLoopback()) {
		return usagef("--admin %q: the admin server is plain HTTP and only for loopback, such as 127.0.0.1:9901", f.admin)
	}
	return nil
}
