package regionctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// defaultWorld is the directory of the world that `cellgate up` starts in the current directory.
const defaultWorld = ".cellgate"

// place is where controllers are asked and with what.
type place struct {
	servers []string // base URLs, tried in turn
	token   string
	ca      string // PEM file; empty = the system's roots
	from    string // for error messages
	dir     string // of a world on this machine; empty = servers only
}

// where finds the world: --world, then the environment, then the context file, then .cellgate in the current directory.
type where struct {
	world   string
	context string
}

func (w *where) flags(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&w.world, "world", "", "`DIR` of a world started by cellgate up (default "+defaultWorld+" when it exists)")
	cmd.PersistentFlags().StringVar(&w.context, "context", "", "`NAME` of a context in the context file ($REGIONCTL_CONFIG or ~/.config/cellgate/regionctl.yaml)")
}

func (w *where) find() (place, error) {
	if w.world != "" {
		return fromWorld(w.world)
	}
	if w.context == "" && os.Getenv("REGIONCTL_SERVER") != "" {
		p := place{token: os.Getenv("REGIONCTL_TOKEN"), ca: os.Getenv("REGIONCTL_CA"), from: "REGIONCTL_SERVER"}
		return p.with(strings.FieldsFunc(os.Getenv("REGIONCTL_SERVER"), func(r rune) bool { return r == ',' || r == ' ' }))
	}
	file, named := contextFile()
	if _, err := os.Stat(file); err == nil || w.context != "" || named {
		p, err := fromContext(file, w.context)
		if err != nil || len(p.servers) > 0 {
			return p, err
		}
	}
	if _, err := os.Stat(filepath.Join(defaultWorld, "world.json")); err == nil {
		return fromWorld(defaultWorld)
	}
	return place{}, errors.New("no world to speak to: start one here with `cellgate up`, give --world DIR, set REGIONCTL_SERVER, REGIONCTL_TOKEN and REGIONCTL_CA, or write a context file")
}

func (p place) with(servers []string) (place, error) {
	for _, s := range servers {
		if !strings.Contains(s, "://") {
			s = "https://" + s
		}
		if !strings.HasPrefix(s, "https://") {
			return p, fmt.Errorf("%s: server %q must be an https URL", p.from, s)
		}
		p.servers = append(p.servers, strings.TrimRight(s, "/"))
	}
	if len(p.servers) == 0 {
		return p, fmt.Errorf("%s names no server", p.from)
	}
	return p, nil
}

// fromWorld reads the part of world.json that speaks of controllers.
func fromWorld(dir string) (place, error) {
	file := filepath.Join(dir, "world.json")
	raw, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return place{}, fmt.Errorf("%s does not exist: is the world up (cellgate up), and is --world its directory?", file)
	}
	if err != nil {
		return place{}, err
	}
	var doc struct {
		Admin   string            `json:"admin"`
		CA      string            `json:"ca"`
		Tokens  map[string]string `json:"tokens"`
		Regions []struct {
			Admin string `json:"admin"`
		} `json:"regions"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return place{}, fmt.Errorf("%s: %w", file, err)
	}
	var servers []string
	for _, r := range doc.Regions {
		if r.Admin != "" {
			servers = append(servers, r.Admin)
		}
	}
	if len(servers) == 0 && doc.Admin != "" {
		servers = append(servers, doc.Admin)
	}
	return place{token: doc.Tokens["admin"], ca: doc.CA, from: file, dir: dir}.with(servers)
}

// contextFile is the path of the context file, and whether the user named it.
func contextFile() (path string, named bool) {
	if f := os.Getenv("REGIONCTL_CONFIG"); f != "" {
		return f, true
	}
	base, err := os.UserConfigDir()
	if err != nil {
		return "", false
	}
	return filepath.Join(base, "cellgate", "regionctl.yaml"), false
}

// contexts is the context file:
//
//	current: production
//	contexts:
//	  - {name: production, servers: ["https://…:7443"], ca: /etc/cellgate/ca.pem, token_file: /home/me/.cellgate-token}
type contexts struct {
	Current  string `yaml:"current"`
	Contexts []struct {
		Name      string   `yaml:"name"`
		World     string   `yaml:"world"`
		Servers   []string `yaml:"servers"`
		CA        string   `yaml:"ca"`
		Token     string   `yaml:"token"`
		TokenFile string   `yaml:"token_file"`
	} `yaml:"contexts"`
}

// fromContext gives the named or the current context; no server when the file names no current one.
func fromContext(file, name string) (place, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return place{}, fmt.Errorf("context file: %w", err)
	}
	var doc contexts
	dec := yaml.NewDecoder(strings.NewReader(string(raw)))
	dec.KnownFields(true)
	if err := dec.Decode(&doc); err != nil {
		return place{}, fmt.Errorf("context file %s: %w", file, err)
	}
	if name == "" {
		name = doc.Current
	}
	if name == "" {
		return place{}, nil
	}
	for _, c := range doc.Contexts {
		if c.Name != name {
			continue
		}
		if c.World != "" {
			return fromWorld(c.World)
		}
		p := place{token: c.Token, ca: c.CA, from: file + ": context " + name}
		if c.TokenFile != "" {
			t, err := os.ReadFile(c.TokenFile)
			if err != nil {
				return p, fmt.Errorf("%s: %w", p.from, err)
			}
			p.token = strings.TrimSpace(string(t))
		}
		return p.with(c.Servers)
	}
	return place{}, fmt.Errorf("context file %s has no context %q", file, name)
}
