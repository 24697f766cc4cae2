import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Copies a topic with Flink in this process, by its exactly-once sink.
 *
 * <p>Each line of the output is an outcome, a scenario, and why.
 */
public class FlinkSink {
    static final int RECORDS = 2_000;
    static final AtomicInteger SEEN = new AtomicInteger();

    public static void main(String[] arguments) {
        play("a job copies every record once", arguments[0], Integer.MAX_VALUE);
        play("a job that fails once copies every record once", arguments[0], RECORDS / 2);
        System.exit(0);
    }

    static void play(String name, String bootstrap, int failsAt) {
        try {
            copy(bootstrap, failsAt);
            System.out.println("passed " + name);
        } catch (Throwable error) {
            error.printStackTrace();
            System.out.println("failed " + name + ": " + root(error).toString().replace('\n', ' '));
        }
    }

    static Throwable root(Throwable error) {
        return error.getCause() == null ? error : root(error.getCause());
    }

    static void copy(String bootstrap, int failsAt) throws Exception {
        String run = UUID.randomUUID().toString().substring(0, 8);
        String input = "flink-in-" + run;
        String output = "flink-out-" + run;
        Map<String, Object> common = Map.of("bootstrap.servers", bootstrap);
        try (Admin admin = Admin.create(common)) {
            admin.createTopics(List.of(new NewTopic(input, 2, (short) 1), new NewTopic(output, 2, (short) 1)))
                    .all()
                    .get();
        }
        List<String> expected = new ArrayList<>();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(common, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < RECORDS; number++) {
                expected.add("record " + number);
                producer.send(new ProducerRecord<>(input, "" + number, "record " + number));
            }
        }
        SEEN.set(0);
        job(bootstrap, input, output, run, failsAt);
        List<String> found = read(common, output);
        found.sort(null);
        expected.sort(null);
        if (!found.equals(expected)) {
            throw new IllegalStateException(found.size() + " records instead of " + expected.size());
        }
    }

    static void job(String bootstrap, String input, String output, String run, int failsAt) throws Exception {
        Configuration config = new Configuration();
        config.setString("restart-strategy.type", "fixed-delay");
        config.setString("restart-strategy.fixed-delay.attempts", "3");
        config.setString("restart-strategy.fixed-delay.delay", "200 ms");
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(2, config);
        environment.enableCheckpointing(300);
        KafkaSource<String> source = KafkaSource.<String>builder()
                .setBootstrapServers(bootstrap)
                .setTopics(input)
                .setGroupId("flink-" + run)
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setBounded(OffsetsInitializer.latest())
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
                .setBootstrapServers(bootstrap)
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix("flink-" + run)
                .setProperty("transaction.timeout.ms", "60000")
                .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                        .setTopic(output)
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                .build();
        environment
                .fromSource(source, WatermarkStrategy.noWatermarks(), "in")
                .map(new Slowly(failsAt))
                .sinkTo(sink);
        environment.execute("copy");
    }

    /** Passes records on, slowly enough for several checkpoints; throws at one of them. */
    static class Slowly implements MapFunction<String, String> {
        final int failsAt;

        Slowly(int failsAt) {
            this.failsAt = failsAt;
        }

        @Override
        public String map(String value) throws Exception {
            if (SEEN.incrementAndGet() == failsAt) {
                throw new IllegalStateException("the job is to fail here");
            }
            Thread.sleep(1);
            return value;
        }
    }

    static List<String> read(Map<String, Object> common, String topic) {
        Map<String, Object> config = new java.util.HashMap<>(common);
        config.put("isolation.level", "read_committed");
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> parts = List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
            consumer.assign(parts);
            consumer.seekToBeginning(parts);
            Map<TopicPartition, Long> ends = consumer.endOffsets(parts);
            while (parts.stream().anyMatch(part -> consumer.position(part) < ends.get(part))) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    found.add(record.value());
                }
            }
        }
        return found;
    }
}
