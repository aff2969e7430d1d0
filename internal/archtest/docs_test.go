package archtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDecisionsHaveNumbersOfTheirOwn: people say "decision 14", so a number is one decision, and its page says it as well.
func TestDecisionsHaveNumbersOfTheirOwn(t *testing.T) {
	pages, err := filepath.Glob("../../docs/adr/[0-9]*.md")
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d decisions, %v", len(pages), err)
	}
	seen := map[int]string{}
	for _, page := range pages {
		var number int
		if _, err := fmt.Sscanf(filepath.Base(page), "%04d-", &number); err != nil {
			t.Errorf("%s: %v", page, err)
		}
		if other := seen[number]; other != "" {
			t.Errorf("%s and %s have one number", filepath.Base(other), filepath.Base(page))
		}
		seen[number] = page
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("# %d. ", number); !strings.HasPrefix(string(raw), want) {
			t.Errorf("%s does not begin with %q", filepath.Base(page), want)
		}
	}
	for number := 1; number <= len(pages); number++ {
		if seen[number] == "" {
			t.Errorf("there is no decision %d", number)
		}
	}
}

// TestLinksOfTheDocsLeadSomewhere follows every relative link.
func TestLinksOfTheDocsLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	followed := 0
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".md") {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, m := range link.FindAllSubmatch(raw, -1) {
			to := string(m[1])
			if strings.Contains(to, "://") {
				continue
			}
			followed++
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), to)); err != nil {
				t.Errorf("%s links to %s: %v", path, to, err)
			}
		}
		return err
	})
	if err != nil || followed < 10 {
		t.Fatalf("%d links, %v", followed, err)
	}
}
