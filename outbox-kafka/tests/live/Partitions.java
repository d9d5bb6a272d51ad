import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

/** Publishes each line of the input as a key, and prints the partition that it went to. */
class Partitions {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var text = new StringSerializer();
        try (var producer = new KafkaProducer<String, String>(properties, text, text)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (String key = in.readLine(); key != null; key = in.readLine()) {
                sent.add(producer.send(new ProducerRecord<>(arguments[1], key, "x")));
            }
            for (Future<RecordMetadata> record : sent) {
                System.out.println(record.get().partition());
            }
        }
    }
}
