//! One operation, as the document describes it.

use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::ReplaceBoolSchemas;
use serde_json::{Map, Value, json};

use crate::http::problem::Problem;

/// Makes schemas from types. Types that are sent are kept by name, and referred to.
pub(super) struct Describer {
    sent: SchemaGenerator,
}

/// One operation. Begun by [`Operation::new`]; the other methods add to it.
pub(super) struct Operation {
    method: &'static str,
    path: String,
    described: Map<String, Value>,
}

impl Describer {
    pub(super) fn new() -> Self {
        let settings = settings().for_serialize().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
        });
        let mut sent = settings.into_generator();
        sent.subschema_for::<Problem<'_>>();
        Self { sent }
    }

    /// Returns the schema of something that the gateway sends.
    pub(super) fn sent<T: JsonSchema>(&mut self) -> Value {
        self.sent.subschema_for::<T>().to_value()
    }

    /// Returns the schema of an object with a list.
    pub(super) fn list_of<T: JsonSchema>(&mut self, member: &str) -> Value {
        let items = self.sent::<T>();
        object(&json!({member: {"type": "array", "items": items}}))
    }

    /// Returns the schema of something that the gateway reads.
    pub(super) fn read<T: JsonSchema>(&self) -> Value {
        let settings = settings().for_deserialize().with(|settings| {
            settings.inline_subschemas = true;
        });
        let mut schema = settings.into_generator().into_root_schema_for::<T>();
        schema.remove("title");
        schema.to_value()
    }

    pub(super) fn into_schemas(mut self) -> Map<String, Value> {
        self.sent.take_definitions(true)
    }
}

/// Generators of clients do not know `true` as a schema.
fn settings() -> SchemaSettings {
    let mut no_booleans = ReplaceBoolSchemas::default();
    no_booleans.skip_additional_properties = true;
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.meta_schema = None);
    settings.with_transform(no_booleans)
}

/// Returns the schema of an object with all these members.
pub(super) fn object(members: &Value) -> Value {
    let required: Vec<_> = members.as_object().into_iter().flat_map(Map::keys).collect();
    json!({"type": "object", "properties": members, "required": required})
}

pub(super) fn text() -> Value {
    json!({"type": "string"})
}

pub(super) fn tenant_name() -> Value {
    json!({"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"})
}

/// Returns the schema of a parameter of the path. Whatever names nothing is answered with 404.
fn name_in_path(name: &str) -> Value {
    match name {
        "tenant" => tenant_name(),
        "server" => {
            json!({"type": "string", "maxLength": 32, "pattern": "^[A-Za-z0-9](_?[A-Za-z0-9-])*$"})
        }
        "toolset" => {
            json!({"type": "string", "maxLength": 32, "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]*$"})
        }
        "second" => json!({"type": "integer", "format": "int64"}),
        "instance" => json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}),
        _ => json!({"type": "string", "minLength": 1}),
    }
}

impl Operation {
    /// Begins the description: the parameters of the path are read from it.
    pub(super) fn new(
        (method, path): (&'static str, &str),
        tag: &str,
        name: &str,
        summary: &str,
    ) -> Self {
        let parameters: Vec<_> = path
            .split('{')
            .skip(1)
            .filter_map(|part| part.split('}').next())
            .map(|name| {
                json!({"name": name, "in": "path", "required": true, "schema": name_in_path(name)})
            })
            .collect();
        let problem = json!({"$ref": "#/components/schemas/Problem"});
        let problem = json!({"description": "An error",
            "content": {"application/problem+json": {"schema": problem}}});
        let described = json!({
            "operationId": name,
            "tags": [tag],
            "summary": summary,
            "parameters": parameters,
            "responses": {"default": problem},
        });
        let Value::Object(described) = described else { unreachable!("it is an object") };
        Self { method, path: path.to_owned(), described }
    }

    /// Adds another form of errors.
    pub(super) fn fails_with(mut self, content_type: &str, schema: Value) -> Self {
        self.described["responses"]["default"]["content"][content_type] = json!({"schema": schema});
        self
    }

    /// Adds an answer with JSON.
    pub(super) fn answers(self, status: u16, description: &str, schema: Value) -> Self {
        self.answers_with(status, description, "application/json", schema)
    }

    pub(super) fn answers_with(
        mut self,
        status: u16,
        description: &str,
        content_type: &str,
        schema: Value,
    ) -> Self {
        let response = &mut self.described["responses"][status.to_string()];
        response["description"] = json!(description);
        response["content"][content_type] = json!({"schema": schema});
        self
    }

    pub(super) fn answers_empty(mut self, status: u16, description: &str) -> Self {
        self.described["responses"][status.to_string()] = json!({"description": description});
        self
    }

    /// Adds the body.
    pub(super) fn reads(mut self, is_required: bool, schema: Value) -> Self {
        let content = json!({"application/json": {"schema": schema}});
        let body = json!({"required": is_required, "content": content});
        self.described.insert("requestBody".to_owned(), body);
        self
    }

    /// Adds parameters of the query: the members of a schema.
    pub(super) fn query(mut self, schema: &Value) -> Self {
        let required = schema["required"].as_array();
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            let is_required = required.is_some_and(|names| names.iter().any(|it| it == name));
            self.add_parameter(
                json!({"name": name, "in": "query", "required": is_required, "schema": schema}),
            );
        }
        self
    }

    pub(super) fn header(mut self, name: &str, description: &str, schema: Value) -> Self {
        self.add_parameter(
            json!({"name": name, "in": "header", "description": description, "schema": schema}),
        );
        self
    }

    pub(super) fn required_header(self, name: &str, description: &str, schema: Value) -> Self {
        let mut operation = self.header(name, description, schema);
        if let Some(Value::Array(parameters)) = operation.described.get_mut("parameters")
            && let Some(last) = parameters.last_mut()
        {
            last["required"] = json!(true);
        }
        operation
    }

    /// Adds a header to an answer that was added before.
    pub(super) fn sends(mut self, status: u16, name: &str, text: &str, schema: Value) -> Self {
        self.described["responses"][status.to_string()]["headers"][name] =
            json!({"description": text, "schema": schema});
        self
    }

    fn add_parameter(&mut self, parameter: Value) {
        if let Some(Value::Array(parameters)) = self.described.get_mut("parameters") {
            parameters.push(parameter);
        }
    }

    /// Returns path, method and description.
    pub(super) fn into_parts(self) -> (String, &'static str, Value) {
        (self.path, self.method, self.described.into())
    }
}
