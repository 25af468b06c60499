package main

import (
	"reflect"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/jsonschema"
)

// schemaPromise is the description of each schema.
const schemaPromise = "Fields may be added. A field that goes, or changes its meaning, changes the number in \"schema\"."

// addSchema gives a verb the flag --json-schema, which prints the schema of its JSON, of a type.
func addSchema(cmd *cobra.Command, t reflect.Type) {
	schema := false
	cmd.Flags().BoolVar(&schema, "json-schema", false, "print the JSON Schema of what --json prints, and do nothing else")
	show := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !schema {
			return show(cmd, args)
		}
		return writeJSON(cmd.OutOrStdout(), jsonschema.Document(t, cmd.CommandPath()+" --json", schemaPromise))
	}
}
