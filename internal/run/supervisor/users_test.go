package supervisor

import (
	"reflect"
	"testing"

	"github.com/gosmc/smc/internal/introduce"
)

// TestSupervisorUsers has the policy of users hold for programs that an agent introduces. A list that
// is not understood admits nobody else.
func TestSupervisorUsers(t *testing.T) {
	for list, want := range map[string]introduce.Users{
		"":       {Mode: introduce.ModeAny},
		"same":   {Mode: introduce.ModeList},
		"7,9":    {Mode: introduce.ModeList, Users: []uint32{7, 9}},
		"any,!7": {Mode: introduce.ModeAny, Excepted: []uint32{7}},
		"a:b":    {Mode: introduce.ModeList},
	} {
		t.Setenv("GOSMC_USERS", list)
		f, err := newFollowed()
		if err != nil {
			t.Fatal(err)
		}
		if got := emptySupervisor(f).introduced.users; !reflect.DeepEqual(got, want) {
			t.Errorf("users %q: %+v, want %+v", list, got, want)
		}
	}
}
