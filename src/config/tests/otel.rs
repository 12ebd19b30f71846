use super::*;

fn read_vars(vars: &[(&str, &str)]) -> (Otel, Vec<String>) {
    let env: Vec<_> =
        vars.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let mut warnings = vec![];
    let otel = read(&env, &mut warnings);
    (otel, warnings)
}

fn valid(vars: &[(&str, &str)]) -> Otel {
    let (otel, warnings) = read_vars(vars);
    assert_eq!(warnings, [""; 0]);
    otel
}

fn url(target: Option<&OtlpTarget>) -> Option<&str> {
    target.map(|target| target.url.as_str())
}

#[test]
fn nothing_is_exported_unless_a_place_is_named() {
    assert_eq!(valid(&[]), Otel::default());
    assert_eq!(
        valid(&[("OTEL_SERVICE_NAME", "x"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "")]),
        Otel::default()
    );
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c.example:4318/base/");
    let all = valid(&[endpoint]);
    assert_eq!(url(all.traces.as_ref()), Some("https://c.example:4318/base/v1/traces"));
    assert_eq!(url(all.metrics.as_ref()), Some("https://c.example:4318/base/v1/metrics"));
    assert_eq!(url(all.logs.as_ref()), Some("https://c.example:4318/base/v1/logs"));
    assert_eq!(all.sampling, Sampling::default());
    assert_eq!(valid(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")]), Otel::default());

    let some =
        valid(&[endpoint, ("OTEL_METRICS_EXPORTER", "none"), ("OTEL_LOGS_EXPORTER", "none")]);
    assert!(some.traces.is_some() && some.metrics.is_none() && some.logs.is_none());
    let named = valid(&[("OTEL_TRACES_EXPORTER", "otlp")]);
    assert_eq!(url(named.traces.as_ref()), Some("http://localhost:4318/v1/traces"));
    assert!(named.metrics.is_none());
    let own = valid(&[("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://l.example/otlp/logs")]);
    assert_eq!(url(own.logs.as_ref()), Some("http://l.example/otlp/logs"));
}

#[test]
fn a_variable_of_one_signal_wins_over_that_of_all() {
    let otel = valid(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c.example"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc,x-a=1"),
        ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x-a=2"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "200"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
    ]);
    let (traces, metrics) = (otel.traces.unwrap(), otel.metrics.unwrap());
    let of = |target: &OtlpTarget| -> Vec<_> {
        target.headers.iter().map(|(name, value)| format!("{name}: {}", value.expose())).collect()
    };
    assert_eq!(of(&traces), ["authorization: Bearer abc", "x-a: 1"]);
    assert_eq!(of(&metrics), ["x-a: 2"]);
    assert_eq!((traces.timeout.as_millis(), metrics.timeout.as_millis()), (200, 1500));
    assert_eq!(traces.certificate.as_deref(), Some("/ca.pem".as_ref()));
    assert!(!format!("{traces:?}").contains("abc"));
}

#[test]
fn samplers_have_their_standard_names() {
    let sampling = |sampler, ratio| {
        let vars = [
            ("OTEL_TRACES_EXPORTER", "otlp"),
            ("OTEL_TRACES_SAMPLER", sampler),
            ("OTEL_TRACES_SAMPLER_ARG", ratio),
        ];
        let Sampling { is_parent_based, per_billion } = valid(&vars).sampling;
        (is_parent_based, per_billion)
    };
    assert_eq!(sampling("always_on", ""), (false, 1_000_000_000));
    assert_eq!(sampling("always_off", ""), (false, 0));
    assert_eq!(sampling("traceidratio", "0.01"), (false, 10_000_000));
    assert_eq!(sampling("parentbased_always_off", ""), (true, 0));
    assert_eq!(sampling("parentbased_traceidratio", "0.25"), (true, 250_000_000));
    assert_eq!(sampling("parentbased_traceidratio", ""), (true, 1_000_000_000));
}

#[test]
fn the_resource_names_the_service_and_its_instance() {
    let otel = valid(&[
        ("OTEL_TRACES_EXPORTER", "otlp"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,team=b%2Cc, deployment.environment.name=prod"),
        ("OTEL_SERVICE_NAME", "gateway"),
    ]);
    assert_eq!(otel.resource["service.name"], "gateway");
    assert_eq!(otel.resource["team"], "b,c");
    assert_eq!(otel.resource["deployment.environment.name"], "prod");
    assert!(otel.resource.contains_key("service.instance.id"));
}

#[test]
fn a_mistake_is_named_and_ignored() {
    for (name, value, why) in [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4317", "not an `http` or `https` URL"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "only `http/protobuf` is supported"),
        ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip", "only `none` is supported"),
        ("OTEL_TRACES_EXPORTER", "otlp,zipkin", "there is no exporter `zipkin` here, only `otlp`"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a b=c", "`a b` cannot be sent as a header"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a", "an entry is not `name=value`, percent-encoded"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=%x", "an entry is not `name=value`, percent-encoded"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "there is no sampler `jaeger_remote` here"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "must be a whole number from 1 to 65536"),
        ("OTEL_BSP_SCHEDULE_DELAY", "5s", "must be a whole number of milliseconds from 1"),
    ] {
        let (otel, warnings) = read_vars(&[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c.example/v1/traces"),
            (name, value),
        ]);
        assert_eq!(warnings, [format!("ignoring `{name}`: {why}")]);
        assert_eq!(otel.traces.is_none(), name.ends_with("ENDPOINT"), "{name}");
        if let Some(traces) = otel.traces {
            assert_eq!(otel.sampling, Sampling::default());
            assert_eq!((otel.spans.queue_max, otel.spans.batch_max), (2048, 512));
            assert_eq!(traces.headers, []);
        }
    }
    let ratio = [
        ("OTEL_TRACES_EXPORTER", "otlp"),
        ("OTEL_TRACES_SAMPLER", "traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
    ];
    let (otel, warnings) = read_vars(&ratio);
    assert_eq!(otel.sampling.per_billion, 1_000_000_000);
    assert_eq!(warnings, ["ignoring `OTEL_TRACES_SAMPLER_ARG`: must be a number from 0 to 1"]);
}
