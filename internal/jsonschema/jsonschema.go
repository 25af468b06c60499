// Package jsonschema describes the JSON that encoding/json makes of Go types, for readers of the tools'
// output: JSON Schema, draft 2020-12.
package jsonschema

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// A Type is a schema of JSON Schema, draft 2020-12, with the words that are needed here.
type Type struct {
	Schema      string           `json:"$schema,omitempty"`
	Title       string           `json:"title,omitempty"`
	Description string           `json:"description,omitempty"`
	Type        any              `json:"type,omitempty"` // a word, or a list of words
	Format      string           `json:"format,omitempty"`
	Properties  map[string]*Type `json:"properties,omitempty"`
	Required    []string         `json:"required,omitempty"`
	Items       *Type            `json:"items,omitempty"`
	Additional  *Type            `json:"additionalProperties,omitempty"`
}

// Of returns the schema of the JSON that encoding/json makes of a type, which must not contain itself.
func Of(t reflect.Type) *Type {
	if t.Kind() == reflect.Pointer { // before its methods: it may be nil
		s := Of(t.Elem())
		if word, ok := s.Type.(string); ok {
			s.Type = []string{word, "null"}
		}
		return s
	}
	implements := func(i reflect.Type) bool { return t.Implements(i) || reflect.PointerTo(t).Implements(i) }
	switch {
	case t == reflect.TypeFor[time.Time]():
		return &Type{Type: "string", Format: "date-time"}
	case implements(reflect.TypeFor[json.Marshaler]()):
		return &Type{} // anything
	case implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return &Type{Type: "string"}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8: // base64
		return &Type{Type: []string{"string", "null"}}
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return &Type{Type: []string{"array", "null"}, Items: Of(t.Elem())}
	case reflect.Map:
		return &Type{Type: []string{"object", "null"}, Additional: Of(t.Elem())}
	case reflect.Struct:
		s := &Type{Type: "object", Properties: make(map[string]*Type)}
		s.addFields(t)
		return s
	case reflect.Bool:
		return &Type{Type: "boolean"}
	case reflect.String:
		return &Type{Type: "string"}
	case reflect.Float32, reflect.Float64:
		return &Type{Type: "number"}
	case reflect.Interface:
		return &Type{}
	}
	return &Type{Type: "integer"}
}

// addFields adds the fields of a struct, also of structs that it embeds.
func (s *Type) addFields(t reflect.Type) {
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		embedded := f.Anonymous && name == ""
		if embedded || !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		s.Properties[name] = Of(f.Type)
		if !strings.Contains(options, "omit") {
			s.Required = append(s.Required, name)
		}
	}
}

// Document returns the schema of a program's whole output, which is of type t, with a title and a
// description.
func Document(t reflect.Type, title, description string) *Type {
	s := Of(t)
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.Title, s.Description = title, description
	return s
}
